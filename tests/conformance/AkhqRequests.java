import com.fasterxml.jackson.databind.ObjectMapper;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import java.util.TreeMap;
import java.util.concurrent.Callable;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutionException;
import java.util.stream.Collectors;
import org.apache.kafka.clients.admin.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.clients.producer.*;
import org.apache.kafka.common.*;
import org.apache.kafka.common.acl.*;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.errors.WakeupException;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.kafka.common.resource.*;
import org.apache.kafka.common.serialization.*;

/**
 * Asks a cluster what AKHQ asks it, with the same calls and options of Kafka's Java clients of its
 * time (3.x): AkhqRequests BOOTSTRAP. Not AKHQ. Prints a line per question: its name, a tab, the
 * answer as JSON.
 */
public class AkhqRequests {
    static final ObjectMapper JSON = new ObjectMapper();
    static final String TOPIC = "akhq", GROUP = "akhq-readers";
    static final List<TopicPartition> PARTS = List.of(part(0), part(1));
    static String bootstrap;
    static Admin admin;

    public static void main(String[] arguments) throws Exception {
        bootstrap = arguments[0];
        admin = Admin.create(properties(Map.of()));
        ByteArraySerializer bytes = new ByteArraySerializer();
        try (Admin closed = admin; KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(properties(Map.of()), bytes, bytes)) {
            topics();
            records(producer);
            groups();
            acls();
            emptied(producer);
        }
    }

    static void ask(String name, Callable<Object> question) throws Exception {
        Object answer;
        try {
            answer = question.call();
        } catch (ExecutionException error) {
            answer = Map.of("error", error.getCause().getClass().getSimpleName(), "message", "" + error.getCause().getMessage());
        } catch (KafkaException error) {
            answer = Map.of("error", error.getClass().getSimpleName(), "message", "" + error.getMessage());
        }
        System.out.println(name + "\t" + JSON.writeValueAsString(answer));
    }

    static Properties properties(Map<String, String> more) {
        Properties found = new Properties();
        found.putAll(more);
        found.put("bootstrap.servers", bootstrap);
        return found;
    }

    /** The settings that AKHQ gives a consumer: no group, committed records only. */
    static KafkaConsumer<byte[], byte[]> consumer(Map<String, String> more) {
        Map<String, String> settings = new HashMap<>(Map.of("max.poll.records", "50", "isolation.level", "read_committed",
            "enable.auto.commit", "false", "default.api.timeout.ms", "15000"));
        settings.putAll(more);
        return new KafkaConsumer<>(properties(settings), new ByteArrayDeserializer(), new ByteArrayDeserializer());
    }

    static TopicPartition part(int number) {
        return new TopicPartition(TOPIC, number);
    }

    static <K, V> Map<String, V> named(Map<K, V> map) {
        Map<String, V> found = new TreeMap<>();
        map.forEach((key, value) -> found.put(key.toString(), value));
        return found;
    }

    // topics and their configs

    static void topics() throws Exception {
        ask("create topic", () -> {
            admin.createTopics(Set.of(new NewTopic(TOPIC, 2, (short) 3))).all().get();
            TopicDescription told = admin.describeTopics(List.of(TOPIC)).allTopicNames().get().get(TOPIC);
            return Arrays.asList(told.partitions().size(), told.partitions().get(0).replicas().size(), told.authorizedOperations());
        });
        ask("list topics", () -> {
            Map<String, Object> found = new TreeMap<>();
            for (TopicListing each : admin.listTopics(new ListTopicsOptions().listInternal(true)).listings().get())
                found.put(each.name(), List.of(each.isInternal(), each.topicId().equals(Uuid.ZERO_UUID)));
            return found;
        });
        ConfigResource topic = new ConfigResource(ConfigResource.Type.TOPIC, TOPIC);
        ask("update a new topic", () -> updated(topic, Map.of("retention.ms", "86400000", "cleanup.policy", "delete")));
        ask("update a topic again", () -> updated(topic, Map.of("retention.ms", "3600000")));
        ask("update a topic wrongly", () -> updated(topic, Map.of("retention.ms", "soon")));
        Node some = admin.describeCluster().nodes().get().iterator().next();
        ConfigResource broker = new ConfigResource(ConfigResource.Type.BROKER, some.idString());
        ask("update a broker", () -> updated(broker, Map.of("log.cleaner.backoff.ms", "14000")));
        ask("update a broker back", () -> {
            admin.alterConfigs(Map.of(broker, new Config(List.of()))).all().get();
            return dynamic(broker);
        });
        ask("configs of all brokers", () -> {
            List<ConfigResource> all = admin.describeCluster().nodes().get().stream()
                .map(each -> new ConfigResource(ConfigResource.Type.BROKER, each.idString())).collect(Collectors.toList());
            Map<String, Object> found = new TreeMap<>();
            admin.describeConfigs(all).all().get().forEach((each, config) -> found.put(each.name(), config.get("delete.topic.enable").value()));
            return found.values();
        });
    }

    static Map<String, String> dynamic(ConfigResource resource) throws Exception {
        Map<String, String> found = new TreeMap<>();
        for (ConfigEntry each : admin.describeConfigs(List.of(resource)).all().get().get(resource).entries())
            if (each.source().name().startsWith("DYNAMIC_")) found.put(each.name(), each.value());
        return found;
    }

    /** Writes all of a resource's own configs anew, with changes, as before configs could be changed one by one. */
    @SuppressWarnings("deprecation")
    static Object updated(ConfigResource resource, Map<String, String> changes) throws Exception {
        List<ConfigEntry> entries = new ArrayList<>();
        dynamic(resource).forEach((name, value) -> entries.add(new ConfigEntry(name, value)));
        changes.forEach((name, value) -> entries.add(new ConfigEntry(name, value)));
        admin.alterConfigs(Map.of(resource, new Config(entries))).all().get();
        return dynamic(resource);
    }

    // records

    static void records(KafkaProducer<byte[], byte[]> producer) throws Exception {
        ask("produce", () -> {
            for (int number = 0; number < 10; number++)
                producer.send(new ProducerRecord<>(TOPIC, number % 2, 1000L * number, ("k" + number).getBytes(), ("v" + number).getBytes(),
                    List.of(new RecordHeader("of", "akhq".getBytes()), new RecordHeader("none", null)))).get();
            RecordMetadata last = producer.send(new ProducerRecord<>(TOPIC, 1, "k1".getBytes(), null)).get();
            return List.of(last.offset(), last.serializedValueSize());
        });
        ask("offsets", AkhqRequests::offsets);
        ask("last records", () -> {
            try (KafkaConsumer<byte[], byte[]> consumer = consumer(Map.of("max.poll.records", "6"))) {
                consumer.assign(PARTS);
                consumer.endOffsets(consumer.assignment()).forEach((part, end) -> consumer.seek(part, Math.max(0, end - 2)));
                return polled(consumer, 4);
            }
        });
        ask("a single record", () -> {
            try (KafkaConsumer<byte[], byte[]> consumer = consumer(Map.of("max.poll.records", "1"))) {
                consumer.assign(List.of(part(1)));
                consumer.seek(part(1), 3L);
                return polled(consumer, 1);
            }
        });
        ask("offsets for a time", () -> {
            try (KafkaConsumer<byte[], byte[]> consumer = consumer(Map.of())) {
                Map<String, Object> found = new TreeMap<>();
                consumer.offsetsForTimes(Map.of(part(0), 5_500L, part(1), Long.MAX_VALUE))
                    .forEach((part, told) -> found.put(part.toString(), told == null ? "none" : (Object) told.offset()));
                return found;
            }
        });
    }

    static Object offsets() {
        try (KafkaConsumer<byte[], byte[]> consumer = consumer(Map.of())) {
            return List.of(named(consumer.beginningOffsets(PARTS)), named(consumer.endOffsets(PARTS)));
        }
    }

    static String text(byte[] value) {
        return value == null ? "null" : new String(value);
    }

    static List<String> polled(Consumer<byte[], byte[]> consumer, int count) {
        List<String> found = new ArrayList<>();
        while (found.size() < count)
            for (ConsumerRecord<byte[], byte[]> each : consumer.poll(Duration.ofMillis(1000))) {
                String headers = Arrays.stream(each.headers().toArray()).map(header -> header.key() + "=" + text(header.value()))
                    .collect(Collectors.joining(","));
                found.add(each.partition() + "-" + each.offset() + " " + text(each.key()) + " " + text(each.value()) + " " + headers);
            }
        Collections.sort(found);
        return found;
    }

    // groups

    static void groups() throws Exception {
        ask("commit for a group that is not there", () -> committed(GROUP, Map.of(part(0), 2L)));
        ask("describe a group of commits", () -> described(GROUP));
        KafkaConsumer<byte[], byte[]> member = consumer(Map.of("group.id", GROUP, "heartbeat.interval.ms", "300"));
        CountDownLatch joined = new CountDownLatch(1);
        Thread polling = new Thread(() -> {
            member.subscribe(List.of(TOPIC));
            try {
                while (true) {
                    member.poll(Duration.ofMillis(200));
                    if (member.assignment().size() == 2) joined.countDown();
                }
            } catch (WakeupException end) {
                member.close();
            }
        });
        polling.start();
        joined.await();
        ask("describe an active group", () -> described(GROUP));
        ask("commit for an active group", () -> committed(GROUP, Map.of(part(0), 3L)));
        ask("delete offsets of an active group", () -> admin.deleteConsumerGroupOffsets(GROUP, Set.copyOf(PARTS)).all().get());
        member.wakeup();
        polling.join();
        ask("commit for an empty group", () -> committed(GROUP, Map.of(part(0), 3L)));
        ask("delete offsets, of partitions without any too", () -> {
            admin.deleteConsumerGroupOffsets(GROUP, Set.copyOf(PARTS)).all().get();
            return admin.listConsumerGroupOffsets(GROUP).partitionsToOffsetAndMetadata().get().size();
        });
        ask("delete the group", () -> {
            committed(GROUP, Map.of(part(1), 1L));
            admin.deleteConsumerGroups(Set.of(GROUP)).all().get();
            return admin.listConsumerGroups().all().get().stream().map(ConsumerGroupListing::groupId).collect(Collectors.toList());
        });
    }

    /** Commits by a consumer of the group that is no member of it. */
    static Object committed(String group, Map<TopicPartition, Long> offsets) throws Exception {
        try (KafkaConsumer<byte[], byte[]> consumer = consumer(Map.of("group.id", group))) {
            Map<TopicPartition, OffsetAndMetadata> wanted = new HashMap<>();
            offsets.forEach((part, offset) -> wanted.put(part, new OffsetAndMetadata(offset)));
            consumer.commitSync(wanted);
        }
        Map<String, Object> found = new TreeMap<>();
        admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata().get().forEach((part, told) -> found.put(part.toString(), told.offset()));
        return found;
    }

    static Object described(String group) throws Exception {
        ConsumerGroupDescription told = admin.describeConsumerGroups(List.of(group)).all().get().get(group);
        return List.of(told.state().toString(), told.isSimpleConsumerGroup(), told.members().size(),
            told.members().stream().mapToInt(each -> each.assignment().topicPartitions().size()).sum());
    }

    // access control lists

    static void acls() throws Exception {
        List<AclBinding> made = new ArrayList<>();
        for (PatternType pattern : List.of(PatternType.LITERAL, PatternType.PREFIXED))
            for (String user : List.of("User:one", "User:two"))
                made.add(new AclBinding(new ResourcePattern(ResourceType.TOPIC, TOPIC, pattern),
                    new AccessControlEntry(user, "*", AclOperation.WRITE, AclPermissionType.ALLOW)));
        admin.createAcls(made).all().get();
        AccessControlEntryFilter one = new AccessControlEntryFilter("User:one", null, AclOperation.ANY, AclPermissionType.ANY);
        ask("acls of a user", () -> found(new AclBindingFilter(new ResourcePatternFilter(ResourceType.TOPIC, null, PatternType.ANY), one)));
        ask("acls of a user, groups", () -> found(new AclBindingFilter(new ResourcePatternFilter(ResourceType.GROUP, null, PatternType.ANY), one)));
        ask("acls of a topic", () -> found(new AclBindingFilter(new ResourcePatternFilter(ResourceType.TOPIC, TOPIC, PatternType.ANY), AccessControlEntryFilter.ANY)));
        admin.deleteAcls(made.stream().map(AclBinding::toFilter).collect(Collectors.toList())).all().get();
        ask("all acls", () -> found(AclBindingFilter.ANY));
    }

    static Object found(AclBindingFilter filter) throws Exception {
        return admin.describeAcls(filter).values().get().stream().map(each -> each.pattern().patternType() + " " + each.entry().principal())
            .sorted().collect(Collectors.toList());
    }

    // what empties a topic

    static void emptied(KafkaProducer<byte[], byte[]> producer) throws Exception {
        ask("empty a topic by time", () -> {
            try (KafkaConsumer<byte[], byte[]> consumer = consumer(Map.of())) {
                Map<TopicPartition, RecordsToDelete> wanted = new HashMap<>();
                consumer.offsetsForTimes(Map.of(part(0), 5_500L, part(1), 5_500L))
                    .forEach((part, told) -> wanted.put(part, RecordsToDelete.beforeOffset(told.offset())));
                return watermarks(wanted);
            }
        });
        ask("empty a topic", () -> {
            Map<TopicPartition, RecordsToDelete> wanted = new HashMap<>();
            try (KafkaConsumer<byte[], byte[]> consumer = consumer(Map.of())) {
                consumer.endOffsets(PARTS).forEach((part, end) -> wanted.put(part, RecordsToDelete.beforeOffset(end)));
            }
            return watermarks(wanted);
        });
        ask("offsets of an emptied topic", AkhqRequests::offsets);
        ask("log dirs", () -> {
            Collection<Integer> brokers = admin.describeCluster().nodes().get().stream().map(Node::id).collect(Collectors.toList());
            Map<Integer, Map<String, LogDirDescription>> told = admin.describeLogDirs(brokers).allDescriptions().get();
            return told.values().stream().flatMap(each -> each.values().stream()).flatMap(each -> each.replicaInfos().entrySet().stream())
                .filter(each -> each.getKey().topic().equals(TOPIC)).map(each -> each.getKey() + " " + each.getValue().offsetLag() + " " + each.getValue().isFuture())
                .sorted().collect(Collectors.toList());
        });
        ask("delete topic", () -> {
            admin.deleteTopics(Set.of(TOPIC)).all().get();
            return admin.listTopics(new ListTopicsOptions().listInternal(true)).names().get().contains(TOPIC);
        });
    }

    static Object watermarks(Map<TopicPartition, RecordsToDelete> wanted) throws Exception {
        Map<String, Object> found = new TreeMap<>();
        for (Map.Entry<TopicPartition, KafkaFuture<DeletedRecords>> each : admin.deleteRecords(wanted).lowWatermarks().entrySet())
            found.put(each.getKey().toString(), each.getValue().get().lowWatermark());
        return found;
    }
}
