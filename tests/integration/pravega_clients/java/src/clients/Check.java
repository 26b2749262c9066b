package clients;

import java.util.Objects;

/** Assertions that are on whatever the JVM was told. */
final class Check {
    private Check() {
    }

    static void holds(boolean condition, String what) {
        if (!condition) {
            throw new AssertionError(what);
        }
    }

    static void same(Object wanted, Object given, String what) {
        if (!Objects.equals(wanted, given)) {
            throw new AssertionError(what + ": wanted=" + wanted + " given=" + given);
        }
    }

    /** The action must fail with (a cause of) this kind. */
    static void fails(Class<? extends Throwable> kind, Action action, String what) {
        try {
            action.run();
        } catch (Throwable error) {
            for (Throwable cause = error; cause != null; cause = cause.getCause()) {
                if (kind.isInstance(cause)) {
                    return;
                }
            }
            throw new AssertionError(what + ": wanted " + kind.getSimpleName() + ", given " + error, error);
        }
        throw new AssertionError(what + ": nothing was thrown");
    }

    interface Action {
        void run() throws Exception;
    }
}
