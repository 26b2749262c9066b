package peers;

import java.util.Arrays;
import java.util.concurrent.atomic.AtomicInteger;

/** Durations in nanoseconds, up to a bound; added by many threads, read when they are done. */
final class Samples {
    private final long[] nanos;
    private final AtomicInteger count = new AtomicInteger();

    Samples(int bound) {
        nanos = new long[bound];
    }

    void add(long duration) {
        int index = count.getAndIncrement();
        if (index < nanos.length) {
            nanos[index] = duration;
        }
    }

    int count() {
        return Math.min(count.get(), nanos.length);
    }

    /** In milliseconds; of no samples, -1. */
    double percentile(double percent) {
        long[] sorted = Arrays.copyOf(nanos, count());
        Arrays.sort(sorted);
        return sorted.length == 0
                ? -1
                : sorted[(int) Math.min(sorted.length - 1, sorted.length * percent / 100)] / 1e6;
    }
}
