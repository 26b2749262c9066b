package clients;

import java.util.Locale;

/** Lines of JSON on stdout, for the test that started this program. */
final class Report {
    private Report() {
    }

    /** Names and values in turn; a value is text, a number or a boolean. */
    static void line(Object... pairs) {
        StringBuilder line = new StringBuilder("{");
        for (int index = 0; index < pairs.length; index += 2) {
            line.append(index == 0 ? "" : ", ").append(quoted(pairs[index].toString())).append(": ");
            Object value = pairs[index + 1];
            line.append(value instanceof Number || value instanceof Boolean ? value.toString() : quoted("" + value));
        }
        synchronized (System.out) {
            System.out.println(line.append("}"));
            System.out.flush();
        }
    }

    private static String quoted(String text) {
        StringBuilder quoted = new StringBuilder("\"");
        for (char letter : text.toCharArray()) {
            if (letter == '"' || letter == '\\') {
                quoted.append('\\').append(letter);
            } else if (letter < ' ' || letter > '~') {
                quoted.append(String.format(Locale.ROOT, "\\u%04x", (int) letter));
            } else {
                quoted.append(letter);
            }
        }
        return quoted.append('"').toString();
    }
}
