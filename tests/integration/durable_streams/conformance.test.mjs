// The public suite, pointed at the server whose address CONFORMANCE_TEST_URL names.
import { runConformanceTests } from "@durable-streams/server-conformance-tests";

runConformanceTests({ baseUrl: process.env.CONFORMANCE_TEST_URL });
