/*
 * Input and check of examples/exactly-once.yaml, by Kafka's Java client alone: nothing of Sluice is used here.
 *
 *   java -cp "$KAFKA_HOME/libs/*" examples/ExactlyOnce.java produce [--events 1000000] [--rate 20000]
 *   java -cp "$KAFKA_HOME/libs/*" examples/ExactlyOnce.java verify [--wait 60] [--ended]
 *
 * `produce` writes page views. `verify` reads the input, computes the windows that must have been written, reads the
 * output with isolation.level=read_committed, and lists what is missing, doubled or wrong. It ends with 0 when all is
 * right, 1 when not, 2 when it cannot tell. docs/exactly-once.md says more.
 */

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.FileReader;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.time.LocalDateTime;
import java.time.ZoneOffset;
import java.time.format.DateTimeFormatter;
import java.util.ArrayList;
import java.util.EnumSet;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.TreeMap;
import java.util.concurrent.ExecutionException;
import java.util.stream.IntStream;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.ListTransactionsOptions;
import org.apache.kafka.clients.admin.TransactionDescription;
import org.apache.kafka.clients.admin.TransactionListing;
import org.apache.kafka.clients.admin.TransactionState;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

public final class ExactlyOnce {
    static final DateTimeFormatter WRITTEN = DateTimeFormatter.ofPattern("yyyy-MM-dd HH:mm:ss.SSS");
    static final long FIRST_TIME = LocalDateTime.of(2026, 1, 1, 0, 0).toInstant(ZoneOffset.UTC).toEpochMilli();
    /** By how much a row may be older than the newest one before it; less than the watermark bears. */
    static final int DISORDER_MILLIS = 3000;
    static final int MILLIS_BETWEEN_ROWS = 4;
    static final int APPLICATIONS = 50;

    /** Options with the values of examples/exactly-once.yaml. */
    static final class Options {
        String bootstrap = "localhost:9092";
        String input = "page-views";
        String output = "views-per-window";
        String properties;
        long events = 1_000_000;
        long first = 0;
        long rate = 20_000;
        String until;
        boolean open;
        long windowMillis = 10_000;
        long boundMillis = 5_000;
        long waitSeconds = 0;
        boolean ended;
        int list = 20;

        Options(String[] arguments) {
            for (int i = 1; i < arguments.length; i++) {
                switch (arguments[i]) {
                    case "--bootstrap" -> bootstrap = arguments[++i];
                    case "--input" -> input = arguments[++i];
                    case "--output" -> output = arguments[++i];
                    case "--properties" -> properties = arguments[++i];
                    case "--events" -> events = Long.parseLong(arguments[++i]);
                    case "--first" -> first = Long.parseLong(arguments[++i]);
                    case "--rate" -> rate = Long.parseLong(arguments[++i]);
                    case "--until" -> until = arguments[++i];
                    case "--open" -> open = true;
                    case "--window" -> windowMillis = 1000 * Long.parseLong(arguments[++i]);
                    case "--bound" -> boundMillis = 1000 * Long.parseLong(arguments[++i]);
                    case "--wait" -> waitSeconds = Long.parseLong(arguments[++i]);
                    case "--ended" -> ended = true;
                    case "--list" -> list = Integer.parseInt(arguments[++i]);
                    default -> throw new IllegalArgumentException("no such option: " + arguments[i]);
                }
            }
        }

        Properties client() throws Exception {
            Properties client = new Properties();
            if (properties != null) {
                try (FileReader file = new FileReader(properties)) {
                    client.load(file);
                }
            }
            client.put("bootstrap.servers", bootstrap);
            return client;
        }
    }

    public static void main(String[] arguments) throws Exception {
        String command = arguments.length == 0 ? "" : arguments[0];
        try {
            switch (command) {
                case "produce" -> produce(new Options(arguments));
                case "verify" -> System.exit(new Verifier(new Options(arguments)).run());
                default -> throw new IllegalArgumentException("say `produce` or `verify`");
            }
        } catch (Exception error) {
            Throwable cause = error instanceof ExecutionException && error.getCause() != null ? error.getCause() : error;
            System.err.println("cannot tell: " + cause);
            System.exit(2);
        }
    }

    /** How many partitions a topic has. Asked in a way that makes no topic. */
    static int partitions(Options options, String topic) throws Exception {
        try (Admin admin = Admin.create(options.client())) {
            return admin.describeTopics(List.of(topic)).allTopicNames().get().get(topic).partitions().size();
        }
    }

    // ---- produce ----

    /**
     * Writes rows from `--first` on, to each partition in turn: `--events` of them and then as many as come until the file
     * `--until` is there; and last in each partition a row that closes all windows, unless `--open`.
     */
    static void produce(Options options) throws Exception {
        Properties client = options.client();
        client.put("enable.idempotence", "true");
        client.put("linger.ms", "5");
        client.put("delivery.timeout.ms", "300000");
        try (var producer = new KafkaProducer<>(client, new StringSerializer(), new StringSerializer())) {
            int partitions = partitions(options, options.input);
            long began = System.nanoTime();
            Path until = options.until == null ? null : Path.of(options.until);
            long number = options.first;
            for (; number < options.first + options.events || until != null && !Files.exists(until); number++) {
                int partition = (int) (number % partitions);
                producer.send(new ProducerRecord<>(options.input, partition, null, row(number)), ExactlyOnce::delivered);
                if (number % 100 == 0) {
                    long due = (number - options.first) * 1000 / options.rate;
                    Thread.sleep(Math.max(0, due - (System.nanoTime() - began) / 1_000_000));
                }
            }
            for (int partition = 0; !options.open && partition < partitions; partition++) {
                String last = json("end", 0, FIRST_TIME + number * MILLIS_BETWEEN_ROWS + 60_000);
                producer.send(new ProducerRecord<>(options.input, partition, null, last), ExactlyOnce::delivered);
            }
            producer.flush();
            System.out.printf("next: %d%n", number);
        }
    }

    static void delivered(Object metadata, Exception error) {
        if (error != null) {
            System.err.println("a row was not delivered: " + error);
            Runtime.getRuntime().halt(2);
        }
    }

    /** A function of the number alone. */
    static String row(long number) {
        long mixed = mix(number);
        String application = "app" + (1 + Long.remainderUnsigned(mixed, APPLICATIONS));
        long late = Long.remainderUnsigned(mixed >>> 20, DISORDER_MILLIS);
        long time = FIRST_TIME + number * MILLIS_BETWEEN_ROWS - late;
        return json(application, 200 + (mixed >>> 40) % 9000, time);
    }

    static String json(String application, long bytes, long time) {
        return "{\"app_id\":\"" + application + "\",\"bytes\":" + bytes + ",\"ts\":\"" + written(time) + "\"}";
    }

    static long mix(long value) {
        value += 0x9e3779b97f4a7c15L;
        value = (value ^ (value >>> 30)) * 0xbf58476d1ce4e5b9L;
        value = (value ^ (value >>> 27)) * 0x94d049bb133111ebL;
        return value ^ (value >>> 31);
    }

    static String written(long millis) {
        return LocalDateTime.ofEpochSecond(
                        Math.floorDiv(millis, 1000L), (int) Math.floorMod(millis, 1000L) * 1_000_000, ZoneOffset.UTC)
                .format(WRITTEN);
    }

    /** Reads `2026-01-01 00:00:00`, with or without a fraction. */
    static long millis(String text) {
        return LocalDateTime.parse(text.replace(' ', 'T')).toInstant(ZoneOffset.UTC).toEpochMilli();
    }

    // ---- verify ----

    /** A result is known by its window and its application. */
    record Key(long windowStart, String application) implements Comparable<Key> {
        @Override
        public int compareTo(Key other) {
            int byWindow = Long.compare(windowStart, other.windowStart);
            return byWindow != 0 ? byWindow : application.compareTo(other.application);
        }
    }

    /** What it says. */
    record Sums(long views, long bytes) {
        Sums plus(Sums other) {
            return new Sums(views + other.views, bytes + other.bytes);
        }
    }

    /** All records of a topic, by a consumer of its own, up to the end that is told now; again for what came since. */
    static final class Reader implements AutoCloseable {
        final KafkaConsumer<String, String> consumer;
        final List<TopicPartition> partitions = new ArrayList<>();

        Reader(Options options, String topic, String isolation) throws Exception {
            Properties client = options.client();
            client.put("isolation.level", isolation);
            client.put("enable.auto.commit", "false");
            client.put("allow.auto.create.topics", "false");
            int known = ExactlyOnce.partitions(options, topic);
            consumer = new KafkaConsumer<>(client, new StringDeserializer(), new StringDeserializer());
            IntStream.range(0, known).forEach(one -> partitions.add(new TopicPartition(topic, one)));
            consumer.assign(partitions);
            consumer.seekToBeginning(partitions);
        }

        interface Take {
            void record(ConsumerRecord<String, String> record) throws Exception;
        }

        void readToEnd(Take take) throws Exception {
            Map<TopicPartition, Long> ends = consumer.endOffsets(partitions);
            long progress = System.nanoTime();
            long sum = -1;
            while (!ends.entrySet().stream().allMatch(end -> consumer.position(end.getKey()) >= end.getValue())) {
                for (ConsumerRecord<String, String> record : consumer.poll(Duration.ofMillis(200))) {
                    take.record(record);
                }
                long now = partitions.stream().mapToLong(consumer::position).sum();
                if (now != sum) {
                    sum = now;
                    progress = System.nanoTime();
                } else if (System.nanoTime() - progress > 60_000_000_000L) {
                    throw new IllegalStateException("nothing came of " + partitions + " for a minute, before its end " + ends);
                }
            }
        }

        @Override
        public void close() {
            consumer.close();
        }
    }

    static final class Verifier {
        final Options options;
        final ObjectMapper json = new ObjectMapper();
        final Map<Key, Sums> expected = new HashMap<>();
        final Map<Integer, Long> newest = new HashMap<>();
        final Map<Key, List<Sums>> results = new HashMap<>();
        long rows;
        long tooLate;

        Verifier(Options options) {
            this.options = options;
        }

        int run() throws Exception {
            long watermark;
            try (Reader input = new Reader(options, options.input, "read_committed")) {
                input.readToEnd(this::takeInput);
                // A window is closed when the newest row of each partition is so far past its end.
                watermark = input.partitions.stream()
                                .mapToLong(one -> newest.getOrDefault(one.partition(), Long.MIN_VALUE / 2))
                                .min()
                                .getAsLong()
                        - options.boundMillis;
            }
            TreeMap<Key, Sums> due = new TreeMap<>();
            expected.forEach((key, sums) -> {
                if (key.windowStart + options.windowMillis - 1 <= watermark) {
                    due.put(key, sums);
                }
            });
            System.out.printf("input: %d rows; %d results are due%n", rows, due.size());
            if (tooLate > 0) {
                System.out.printf(
                        "cannot tell: %d rows are out of order by more than the watermark bears; whether they count hangs on"
                                + " the order in which partitions are read%n",
                        tooLate);
                return 2;
            }
            if (due.isEmpty()) {
                System.out.printf("cannot tell: no result is due; the newest rows are, by partition, %s%n", newestTold());
                return 2;
            }
            try (Reader output = new Reader(options, options.output, "read_committed")) {
                long began = System.nanoTime();
                long deadline = began + options.waitSeconds * 1_000_000_000L;
                output.readToEnd(this::takeResult);
                while (!results.keySet().containsAll(due.keySet()) && System.nanoTime() < deadline) {
                    Thread.sleep(200);
                    output.readToEnd(this::takeResult);
                }
                System.out.printf("waited: %d s%n", (System.nanoTime() - began) / 1_000_000_000L);
                return judge(due, heldUp(output));
            }
        }

        Map<Integer, String> newestTold() {
            Map<Integer, String> told = new TreeMap<>();
            newest.forEach((partition, time) -> told.put(partition, written(time)));
            return told;
        }

        void takeInput(ConsumerRecord<String, String> record) throws Exception {
            JsonNode row = json.readTree(record.value());
            long time = millis(row.get("ts").asText());
            long before = newest.getOrDefault(record.partition(), Long.MIN_VALUE / 2);
            tooLate += time <= before - options.boundMillis ? 1 : 0;
            newest.put(record.partition(), Math.max(before, time));
            Key key = new Key(time - Math.floorMod(time, options.windowMillis), row.get("app_id").asText());
            expected.merge(key, new Sums(1, row.get("bytes").asLong()), Sums::plus);
            rows++;
        }

        void takeResult(ConsumerRecord<String, String> record) throws Exception {
            JsonNode row = json.readTree(record.value());
            long start = millis(row.get("window_start").asText());
            if (millis(row.get("window_end").asText()) != start + options.windowMillis) {
                throw new IllegalStateException("no window of " + options.windowMillis + " ms: " + record.value());
            }
            Sums sums = new Sums(row.get("views").asLong(), row.get("bytes").asLong());
            results.computeIfAbsent(new Key(start, row.get("app_id").asText()), key -> new ArrayList<>()).add(sums);
        }

        /** Partitions in which readers of committed results wait for a transaction that is open. */
        List<TopicPartition> heldUp(Reader output) throws Exception {
            try (Reader all = new Reader(options, options.output, "read_uncommitted")) {
                Map<TopicPartition, Long> committed = output.consumer.endOffsets(output.partitions);
                Map<TopicPartition, Long> ends = all.consumer.endOffsets(all.partitions);
                return ends.keySet().stream().filter(one -> committed.get(one) < ends.get(one)).toList();
            }
        }

        /** Ids of transactions that are not over and have rows in the output. */
        List<String> openTransactions() throws Exception {
            var states = EnumSet.of(
                    TransactionState.ONGOING, TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT);
            try (Admin admin = Admin.create(options.client())) {
                var listed = admin.listTransactions(new ListTransactionsOptions().filterStates(states)).all().get();
                var ids = listed.stream().map(TransactionListing::transactionalId).toList();
                Map<String, TransactionDescription> described = admin.describeTransactions(ids).all().get();
                return described.entrySet().stream()
                        .filter(one -> one.getValue().topicPartitions().stream()
                                .anyMatch(partition -> partition.topic().equals(options.output)))
                        .map(one -> one.getKey() + " " + one.getValue().state())
                        .sorted()
                        .toList();
            }
        }

        int judge(TreeMap<Key, Sums> due, List<TopicPartition> heldUp) throws Exception {
            List<String> missing = new ArrayList<>();
            List<String> doubled = new ArrayList<>();
            List<String> wrong = new ArrayList<>();
            due.forEach((key, sums) -> {
                if (!results.containsKey(key)) {
                    missing.add(told(key) + " " + sums);
                }
            });
            new TreeMap<>(results).forEach((key, seen) -> {
                if (seen.size() > 1) {
                    doubled.add(told(key) + " times=" + seen.size());
                }
                Sums right = due.get(key);
                // A window that closed after the input was read is not known in full.
                seen.stream().filter(sums -> right != null && !sums.equals(right)).forEach(sums -> wrong.add(
                        told(key) + " " + sums + " instead of " + right));
                if (!expected.containsKey(key) && right == null && options.ended) {
                    wrong.add(told(key) + " of which the input has no row");
                }
            });
            System.out.printf("output: %d results%n", results.values().stream().mapToInt(List::size).sum());
            list("missing", missing);
            list("doubled", doubled);
            list("wrong", wrong);
            List<String> open = openTransactions();
            list("open transactions", open);
            list("partitions in which readers wait", heldUp.stream().map(TopicPartition::toString).toList());
            boolean left = options.ended && !(open.isEmpty() && heldUp.isEmpty());
            boolean right = missing.isEmpty() && doubled.isEmpty() && wrong.isEmpty() && !left;
            System.out.println(right ? "each result is there once" : "the output is not right");
            return right ? 0 : 1;
        }

        void list(String what, List<String> faults) {
            System.out.printf("%s: %d%n", what, faults.size());
            faults.stream().limit(options.list).forEach(fault -> System.out.println("  " + what + " " + fault));
        }

        static String told(Key key) {
            return "window_start=" + written(key.windowStart).replace(' ', 'T') + " app_id=" + key.application;
        }
    }
}
