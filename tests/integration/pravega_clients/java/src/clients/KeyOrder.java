package clients;

import java.util.ArrayList;
import java.util.List;
import java.util.TreeMap;
import java.util.Map;

/**
 * Events "key:number" as they are read. Each key's numbers must come as 0, 1, 2, ...: a gap is a lost or overtaken
 * event, a number seen before is a duplicate.
 */
final class KeyOrder {
    private final Map<String, Integer> next = new TreeMap<>();
    private final List<String> complaints = new ArrayList<>();
    private int count;

    static String event(String key, int number) {
        return key + ":" + number;
    }

    synchronized void add(String event) {
        int colon = event.indexOf(':');
        String key = event.substring(0, colon);
        int number = Integer.parseInt(event.substring(colon + 1));
        int wanted = next.getOrDefault(key, 0);
        if (number != wanted && complaints.size() < 5) {
            complaints.add(key + " wanted=" + wanted + " given=" + number);
        }
        next.put(key, Math.max(wanted, number + 1));
        count++;
    }

    synchronized int count() {
        return count;
    }

    synchronized void check(int wanted) {
        Check.holds(complaints.isEmpty(), "events lost, repeated or out of order: " + complaints);
        Check.same(wanted, count, "events read");
    }
}
