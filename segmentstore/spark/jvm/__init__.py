"""The format `segmentstore-jvm`: the Java reader, its jar, and the Python process that plans for it."""
