package clients;

/** One named behaviour that a client counts on. */
record Scenario(String name, Body body) {
    interface Body {
        void run(Session session) throws Exception;
    }
}
