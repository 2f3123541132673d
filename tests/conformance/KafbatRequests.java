import com.fasterxml.jackson.databind.ObjectMapper;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Properties;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.concurrent.Callable;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutionException;
import java.util.function.Function;
import java.util.stream.Collectors;
import org.apache.kafka.clients.admin.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.clients.producer.*;
import org.apache.kafka.common.*;
import org.apache.kafka.common.acl.*;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.errors.WakeupException;
import org.apache.kafka.common.quota.*;
import org.apache.kafka.common.resource.*;
import org.apache.kafka.common.serialization.*;

/**
 * Asks a cluster what Kafbat UI's pages ask it, with the same calls and options of Kafka's Java
 * clients: KafbatRequests BOOTSTRAP. Not Kafbat UI. Prints a line per question: its name, a tab, the
 * answer as JSON.
 */
public class KafbatRequests {
    static final ObjectMapper JSON = new ObjectMapper();
    static final Duration POLL = Duration.ofMillis(200);
    static final String TOPIC = "kafbat", GROUP = "kafbat-readers";
    static String bootstrap;
    static Admin admin;

    public static void main(String[] arguments) throws Exception {
        bootstrap = arguments[0];
        admin = Admin.create(properties(Map.of("client.id", "kafbat-ui-admin", "request.timeout.ms", "30000")));
        try (Admin closed = admin) {
            cluster();
            topics();
            messages();
            groups();
            disks();
            security();
            changes();
        }
    }

    // what is asked, and how it is printed

    static void ask(String name, Callable<Object> question) throws Exception {
        Object answer;
        try {
            answer = question.call();
        } catch (ExecutionException error) {
            answer = Map.of("error", error.getCause().getClass().getSimpleName(), "message", "" + error.getCause().getMessage());
        }
        System.out.println(name + "\t" + JSON.writeValueAsString(answer));
    }

    static Properties properties(Map<String, String> more) {
        Properties found = new Properties();
        found.putAll(more);
        found.put("bootstrap.servers", bootstrap);
        return found;
    }

    static <K, V> Map<String, V> named(Map<K, V> map) {
        Map<String, V> found = new TreeMap<>();
        map.forEach((key, value) -> found.put(key.toString(), value));
        return found;
    }

    static TopicPartition part(int number) {
        return new TopicPartition(TOPIC, number);
    }

    static List<Integer> ids(Collection<Node> nodes) {
        return nodes.stream().map(Node::id).sorted().collect(Collectors.toList());
    }

    // the cluster, its features, its brokers

    static void cluster() throws Exception {
        DescribeClusterResult plain = admin.describeCluster(new DescribeClusterOptions().includeAuthorizedOperations(false));
        int controller = plain.controller().get().id();
        ask("features", () -> {
            Map<String, Object> found = new TreeMap<>();
            ConfigResource broker = new ConfigResource(ConfigResource.Type.BROKER, "" + controller);
            for (ConfigEntry each : admin.describeConfigs(List.of(broker)).all().get().get(broker).entries())
                if (each.name().equals("delete.topic.enable") || each.name().contains("inter.broker.protocol.version"))
                    found.put(each.name(), each.value());
            admin.describeFeatures().featureMetadata().get().finalizedFeatures()
                .forEach((name, range) -> found.put(name, (int) range.maxVersionLevel()));
            found.put("acls", admin.describeAcls(AclBindingFilter.ANY).values().get().size());
            return found;
        });
        ask("cluster", () -> {
            DescribeClusterResult told = admin.describeCluster(new DescribeClusterOptions().includeAuthorizedOperations(true));
            Set<String> may = new TreeSet<>();
            told.authorizedOperations().get().forEach(each -> may.add(each.name()));
            return Map.of("id", told.clusterId().get(), "nodes", ids(told.nodes().get()),
                "controller", told.controller().get().id(), "may", may);
        });
        ask("quorum", () -> {
            QuorumInfo told = admin.describeMetadataQuorum().quorumInfo().get();
            List<Integer> voters = told.voters().stream().map(QuorumInfo.ReplicaState::replicaId).sorted().collect(Collectors.toList());
            return Map.of("leader", told.leaderId(), "voters", voters, "end", told.highWatermark());
        });
        ask("broker configs", () -> {
            ConfigResource broker = new ConfigResource(ConfigResource.Type.BROKER, "" + controller);
            return settings(admin.describeConfigs(List.of(broker)).all().get().get(broker));
        });
        for (String[] each : new String[][] {{"log.retention.ms", "8640000"}, {"node.id", "77"}, {"log.retention.ms", "soon"}})
            ask("set " + each[0] + " of a broker to " + each[1], () -> {
                ConfigResource broker = new ConfigResource(ConfigResource.Type.BROKER, "" + controller);
                AlterConfigOp set = new AlterConfigOp(new ConfigEntry(each[0], each[1]), AlterConfigOp.OpType.SET);
                admin.incrementalAlterConfigs(Map.of(broker, List.of(set))).all().get();
                ConfigEntry told = admin.describeConfigs(List.of(broker)).all().get().get(broker).get(each[0]);
                return java.util.Arrays.asList(told.value(), told.source().name());
            });
        AlterConfigOp back = new AlterConfigOp(new ConfigEntry("log.retention.ms", null), AlterConfigOp.OpType.DELETE);
        admin.incrementalAlterConfigs(Map.of(new ConfigResource(ConfigResource.Type.BROKER, "" + controller), List.of(back))).all().get();
        ask("broker loggers", () -> {
            ConfigResource loggers = new ConfigResource(ConfigResource.Type.BROKER_LOGGER, "" + controller);
            return settings(admin.describeConfigs(List.of(loggers)).all().get().get(loggers)).keySet();
        });
    }

    /** By name: value, source, type, whether it is read only and sensitive, whether it has documentation, its synonyms. */
    static Map<String, Object> settings(Config config) {
        Map<String, Object> found = new TreeMap<>();
        for (ConfigEntry each : config.entries()) {
            List<String> synonyms = each.synonyms().stream().map(s -> s.source() + ":" + s.name() + "=" + s.value()).collect(Collectors.toList());
            found.put(each.name(), java.util.Arrays.asList(each.value(), each.source().name(), each.type().name(), each.isReadOnly(),
                each.isSensitive(), each.documentation() != null && !each.documentation().isBlank(), synonyms));
        }
        return found;
    }

    // topics

    static Map<String, Object> described(String topic) throws Exception {
        TopicDescription told = admin.describeTopics(List.of(topic)).topicNameValues().get(topic).get();
        List<Object> partitions = new ArrayList<>();
        for (TopicPartitionInfo each : told.partitions())
            partitions.add(Map.of("leads", each.leader() != null && each.replicas().contains(each.leader()),
                "replicas", ids(each.replicas()), "isr", ids(each.isr())));
        return Map.of("internal", told.isInternal(), "id", told.topicId().toString(), "partitions", partitions);
    }

    static void topics() throws Exception {
        ask("create topic", () -> {
            NewTopic made = new NewTopic(TOPIC, Optional.of(2), Optional.<Short>empty()).configs(Map.of("cleanup.policy", "delete", "retention.ms", "86400000"));
            admin.createTopics(List.of(made)).all().get();
            return described(TOPIC);
        });
        ask("create topic again", () -> admin.createTopics(List.of(new NewTopic(TOPIC, Optional.of(2), Optional.<Short>empty()))).all().get());
        ask("list topics", () -> new TreeSet<>(admin.listTopics(new ListTopicsOptions().listInternal(true)).names().get()));
        ask("describe an unknown topic", () -> described("no-such-topic"));
        DescribeConfigsOptions all = new DescribeConfigsOptions().includeSynonyms(true).includeDocumentation(true);
        ConfigResource resource = new ConfigResource(ConfigResource.Type.TOPIC, TOPIC);
        ask("topic configs", () -> settings(admin.describeConfigs(List.of(resource), all).values().get(resource).get()));
        ask("configs of an unknown topic", () -> {
            ConfigResource unknown = new ConfigResource(ConfigResource.Type.TOPIC, "no-such-topic");
            return settings(admin.describeConfigs(List.of(unknown), all).values().get(unknown).get());
        });
        ask("update topic", () -> {
            List<AlterConfigOp> orders = new ArrayList<>();
            for (ConfigEntry each : admin.describeConfigs(List.of(resource), all).all().get().get(resource).entries())
                if (each.source() == ConfigEntry.ConfigSource.DYNAMIC_TOPIC_CONFIG && !each.name().equals("retention.ms"))
                    orders.add(new AlterConfigOp(each, AlterConfigOp.OpType.DELETE));
            orders.add(new AlterConfigOp(new ConfigEntry("retention.ms", "7200000"), AlterConfigOp.OpType.SET));
            orders.add(new AlterConfigOp(new ConfigEntry("max.message.bytes", "2000000"), AlterConfigOp.OpType.SET));
            admin.incrementalAlterConfigs(Map.of(resource, orders)).all().get();
            Map<String, String> found = new TreeMap<>();
            for (ConfigEntry each : admin.describeConfigs(List.of(resource), all).all().get().get(resource).entries())
                if (each.source() == ConfigEntry.ConfigSource.DYNAMIC_TOPIC_CONFIG) found.put(each.name(), each.value());
            return found;
        });
        ask("increase partitions", () -> {
            admin.createPartitions(Map.of(TOPIC, NewPartitions.increaseTo(3))).all().get();
            return described(TOPIC);
        });
        ask("decrease partitions", () -> admin.createPartitions(Map.of(TOPIC, NewPartitions.increaseTo(1))).all().get());
    }

    // messages

    static KafkaConsumer<byte[], byte[]> consumer(Map<String, String> more) {
        Properties found = properties(Map.of("client.id", "kafbat-ui-consumer-1", "auto.offset.reset", "earliest",
            "enable.auto.commit", "false", "allow.auto.create.topics", "false"));
        found.putAll(more);
        return new KafkaConsumer<>(found, new ByteArrayDeserializer(), new ByteArrayDeserializer());
    }

    static void messages() throws Exception {
        try (KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(properties(Map.of()), new ByteArraySerializer(), new ByteArraySerializer())) {
            ask("send a message", () -> {
                for (int number = 0; number < 30; number++) {
                    ProducerRecord<byte[], byte[]> made = new ProducerRecord<>(TOPIC, number % 3, 1000L * number, ("k" + number).getBytes(), ("v" + number).getBytes());
                    made.headers().add("number", ("" + number).getBytes());
                    producer.send(made).get();
                }
                RecordMetadata last = producer.send(new ProducerRecord<byte[], byte[]>(TOPIC, 0, (Long) 30_000L, null, (byte[]) null)).get();
                return List.of(last.partition(), last.offset(), last.timestamp());
            });
            ask("producers of a topic", () -> {
                Map<TopicPartition, DescribeProducersResult.PartitionProducerState> told = admin.describeProducers(List.of(part(0), part(1), part(2))).all().get();
                Map<String, Object> found = new TreeMap<>();
                told.forEach((part, state) -> found.put(part.toString(), state.activeProducers().stream()
                    .map(each -> List.of(each.producerEpoch(), each.lastSequence(), each.lastTimestamp(), each.currentTransactionStartOffset().isPresent()))
                    .collect(Collectors.toList())));
                return found;
            });
        }
        List<TopicPartition> parts = List.of(part(0), part(1), part(2));
        ask("partitions for browsing", () -> {
            try (KafkaConsumer<byte[], byte[]> consumer = consumer(Map.of())) {
                return consumer.partitionsFor(TOPIC).stream().map(PartitionInfo::partition).sorted().collect(Collectors.toList());
            }
        });
        ask("earliest messages", () -> browse(consumer -> range(consumer.beginningOffsets(parts), 0, 4)));
        ask("latest messages", () -> browse(consumer -> range(consumer.endOffsets(parts), -4, 4)));
        ask("messages from an offset", () -> browse(consumer -> Map.of(part(1), new long[] {6, 9})));
        ask("messages from a timestamp", () -> browse(consumer -> atTime(consumer, parts, 24_500L)));
        ask("messages from a timestamp to come", () -> browse(consumer -> atTime(consumer, parts, 9_000_000L)));
        ask("tailing", KafbatRequests::tailing);
        ask("an offset past the end", () -> {
            try (KafkaConsumer<byte[], byte[]> consumer = consumer(Map.of("auto.offset.reset", "none"))) {
                consumer.assign(List.of(part(0)));
                consumer.seek(part(0), 500L);
                return consumer.poll(Duration.ofSeconds(20)).count();
            } catch (OffsetOutOfRangeException error) {
                return error.offsetOutOfRangePartitions().toString();
            }
        });
    }

    static Map<TopicPartition, long[]> range(Map<TopicPartition, Long> offsets, int from, int count) {
        Map<TopicPartition, long[]> found = new TreeMap<>(java.util.Comparator.comparing(TopicPartition::toString));
        offsets.forEach((part, offset) -> found.put(part, new long[] {Math.max(0, offset + from), Math.max(0, offset + from) + count}));
        return found;
    }

    static Map<TopicPartition, long[]> atTime(Consumer<?, ?> consumer, List<TopicPartition> parts, long time) {
        Map<TopicPartition, Long> found = new TreeMap<>(java.util.Comparator.comparing(TopicPartition::toString)), ends = consumer.endOffsets(parts);
        consumer.offsetsForTimes(parts.stream().collect(Collectors.toMap(each -> each, each -> time)))
            .forEach((part, told) -> { if (told != null) found.put(part, told.offset()); });
        Map<TopicPartition, long[]> ranges = range(found, 0, 0);
        ranges.forEach((part, range) -> range[1] = ends.get(part));
        return ranges;
    }

    /** Reads ranges of offsets by assign, seek, poll and pause, as the pages of messages do. */
    static List<String> browse(Function<Consumer<byte[], byte[]>, Map<TopicPartition, long[]>> chosen) {
        List<String> found = new ArrayList<>();
        try (KafkaConsumer<byte[], byte[]> consumer = consumer(Map.of())) {
            Map<TopicPartition, long[]> ranges = chosen.apply(consumer);
            consumer.assign(ranges.keySet());
            ranges.forEach((part, range) -> consumer.seek(part, range[0]));
            Set<TopicPartition> paused = new java.util.HashSet<>();
            while (paused.size() < ranges.size()) {
                ConsumerRecords<byte[], byte[]> polled = consumer.poll(POLL);
                ranges.forEach((part, range) -> {
                    polled.records(part).stream().filter(each -> each.offset() < range[1]).forEach(each -> found.add(shown(each)));
                    if (!paused.contains(part) && consumer.position(part) >= range[1]) {
                        paused.add(part);
                        consumer.pause(List.of(part));
                    }
                });
            }
            consumer.resume(paused);
        }
        java.util.Collections.sort(found);
        return found;
    }

    static String shown(ConsumerRecord<byte[], byte[]> each) {
        List<String> headers = new ArrayList<>();
        each.headers().forEach(header -> headers.add(header.key() + "=" + new String(header.value(), StandardCharsets.UTF_8)));
        return each.partition() + "-" + each.offset() + " " + each.timestamp() + " " + text(each.key()) + " " + text(each.value()) + " " + headers;
    }

    static String text(byte[] value) {
        return value == null ? "null" : new String(value, StandardCharsets.UTF_8);
    }

    static Object tailing() throws Exception {
        try (KafkaConsumer<byte[], byte[]> consumer = consumer(Map.of());
            KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(properties(Map.of()), new ByteArraySerializer(), new ByteArraySerializer())) {
            Map<TopicPartition, Long> ends = consumer.endOffsets(List.of(part(0), part(1), part(2)));
            consumer.assign(ends.keySet());
            ends.forEach(consumer::seek);
            int before = consumer.poll(POLL).count();
            producer.send(new ProducerRecord<>(TOPIC, 2, 31_000L, null, "tail".getBytes())).get();
            while (true)
                for (ConsumerRecord<byte[], byte[]> each : consumer.poll(POLL)) return List.of(before, shown(each));
        }
    }

    // groups

    static void groups() throws Exception {
        KafkaConsumer<byte[], byte[]> member = consumer(Map.of("group.id", GROUP, "client.id", "member", "heartbeat.interval.ms", "300"));
        CountDownLatch joined = new CountDownLatch(1);
        Thread polling = new Thread(() -> {
            member.subscribe(List.of(TOPIC));
            try {
                while (true) {
                    member.poll(POLL);
                    if (joined.getCount() > 0 && member.assignment().size() == 3) {
                        member.commitSync(Map.of(part(0), new OffsetAndMetadata(4), part(1), new OffsetAndMetadata(10)));
                        joined.countDown();
                    }
                }
            } catch (WakeupException end) {
                member.close();
            }
        });
        polling.start();
        joined.await();
        ask("list groups", KafbatRequests::listed);
        ask("describe an active group", () -> group(GROUP));
        ask("delete an active group", () -> admin.deleteConsumerGroups(List.of(GROUP)).all().get());
        ask("delete offsets of an active group", () -> admin.deleteConsumerGroupOffsets(GROUP, Set.of(part(0))).all().get());
        ask("reset an active group", () -> reset(GROUP, Map.of(part(0), 0L)));
        member.wakeup();
        polling.join();
        ask("describe an empty group", () -> group(GROUP));
        ask("committed offsets", () -> committed(GROUP, null));
        ask("committed offsets of partitions", () -> committed(GROUP, List.of(part(0), part(2))));
        ask("committed offsets of two groups", () -> {
            Map<String, ListConsumerGroupOffsetsSpec> asked = Map.of(GROUP, new ListConsumerGroupOffsetsSpec(), "no-such-group", new ListConsumerGroupOffsetsSpec());
            Map<String, Object> found = new TreeMap<>();
            admin.listConsumerGroupOffsets(asked).all().get().forEach((group, told) -> found.put(group, told.size()));
            return found;
        });
        for (OffsetSpec spec : List.of(OffsetSpec.earliest(), OffsetSpec.latest(), OffsetSpec.forTimestamp(24_500L), OffsetSpec.maxTimestamp()))
            ask("reset to " + spec.getClass().getSimpleName(), () -> reset(GROUP, listed(spec)));
        ask("delete offsets of a topic", () -> {
            admin.deleteConsumerGroupOffsets(GROUP, Set.of(part(0), part(1), part(2))).all().get();
            return committed(GROUP, null);
        });
        ask("describe an unknown group", () -> group("no-such-group"));
        ask("delete an unknown group", () -> admin.deleteConsumerGroups(List.of("no-such-group")).all().get());
        ask("delete a group", () -> {
            reset(GROUP, Map.of(part(0), 1L));
            admin.deleteConsumerGroups(List.of(GROUP)).all().get();
            return listed();
        });
    }

    static Object listed() throws Exception {
        Map<String, Object> found = new TreeMap<>();
        admin.listConsumerGroups().all().get().forEach(each -> found.put(each.groupId(),
            List.of(each.state().map(Object::toString).orElse("none"), each.type().map(Object::toString).orElse("none"), each.isSimpleConsumerGroup())));
        return found;
    }

    static Map<TopicPartition, Long> listed(OffsetSpec spec) throws Exception {
        Map<TopicPartition, Long> found = new java.util.HashMap<>();
        ListOffsetsResult told = admin.listOffsets(List.of(part(0), part(1), part(2)).stream().collect(Collectors.toMap(each -> each, each -> spec)));
        for (int number = 0; number < 3; number++) {
            long offset = told.partitionResult(part(number)).get().offset();
            if (offset >= 0) found.put(part(number), offset);
        }
        return found;
    }

    static Object group(String name) throws Exception {
        ConsumerGroupDescription told = admin.describeConsumerGroups(List.of(name)).all().get().get(name);
        List<Object> members = new ArrayList<>();
        for (MemberDescription each : told.members())
            members.add(List.of(each.clientId(), each.host(), each.assignment().topicPartitions().size()));
        return Map.of("state", told.state().toString(), "assignor", told.partitionAssignor(), "members", members,
            "coordinator", told.coordinator().id() >= 0, "simple", told.isSimpleConsumerGroup());
    }

    static Object reset(String name, Map<TopicPartition, Long> offsets) throws Exception {
        Map<TopicPartition, OffsetAndMetadata> wanted = new java.util.HashMap<>();
        offsets.forEach((part, offset) -> wanted.put(part, new OffsetAndMetadata(offset)));
        admin.alterConsumerGroupOffsets(name, wanted).all().get();
        return committed(name, null);
    }

    static Object committed(String name, List<TopicPartition> parts) throws Exception {
        Map<String, Object> found = new TreeMap<>();
        Map<String, ListConsumerGroupOffsetsSpec> asked = Map.of(name, new ListConsumerGroupOffsetsSpec().topicPartitions(parts));
        admin.listConsumerGroupOffsets(asked).all().get().get(name)
            .forEach((part, told) -> found.put(part.toString(), told == null ? "none" : (Object) told.offset()));
        return found;
    }

    // disks

    static Map<Integer, Map<String, LogDirDescription>> logDirs() throws Exception {
        return admin.describeLogDirs(ids(admin.describeCluster().nodes().get())).allDescriptions().get();
    }

    static void disks() throws Exception {
        TopicPartitionReplica replica = new TopicPartitionReplica(TOPIC, 0, ids(admin.describeCluster().nodes().get()).get(0));
        ask("log dirs", () -> {
            List<Object> found = new ArrayList<>();
            logDirs().forEach((broker, dirs) -> {
                long size = dirs.values().stream().flatMap(each -> each.replicaInfos().entrySet().stream())
                    .filter(each -> each.getKey().equals(part(0))).mapToLong(each -> each.getValue().size()).sum();
                boolean spaces = dirs.values().stream().allMatch(each -> each.error() == null && each.totalBytes().getAsLong() > each.usableBytes().getAsLong()
                    && each.usableBytes().getAsLong() > 0);
                found.add(List.of(dirs.size(), size, spaces));
            });
            return found;
        });
        ask("move to another log dir", () -> {
            String target = null;
            for (Map.Entry<String, LogDirDescription> each : logDirs().get(replica.brokerId()).entrySet())
                if (!each.getValue().replicaInfos().containsKey(part(0))) target = each.getKey();
            admin.alterReplicaLogDirs(Map.of(replica, target)).all().get();
            while (true) {
                ReplicaInfo told = logDirs().get(replica.brokerId()).get(target).replicaInfos().get(part(0));
                if (told != null && !told.isFuture()) return told.offsetLag();
                Thread.sleep(50);
            }
        });
        ask("move to an unknown log dir", () -> admin.alterReplicaLogDirs(Map.of(replica, "/no/such/dir")).all().get());
        ask("move an unknown topic", () -> {
            String some = logDirs().get(replica.brokerId()).keySet().iterator().next();
            return admin.alterReplicaLogDirs(Map.of(new TopicPartitionReplica("no-such-topic", 0, replica.brokerId()), some)).all().get();
        });
    }

    // access control lists and quotas

    static void security() throws Exception {
        AclBinding made = new AclBinding(new ResourcePattern(ResourceType.TOPIC, "acl-", PatternType.PREFIXED),
            new AccessControlEntry("User:kafbat", "*", AclOperation.READ, AclPermissionType.ALLOW));
        ask("create acls", () -> admin.createAcls(List.of(made)).all().get());
        ResourcePatternFilter resources = new ResourcePatternFilter(ResourceType.TOPIC, "acl-a", PatternType.MATCH);
        for (ResourcePatternFilter each : List.of(ResourcePatternFilter.ANY, resources))
            ask("list acls, " + each.patternType(), () -> admin.describeAcls(new AclBindingFilter(each, AccessControlEntryFilter.ANY)).values().get()
                .stream().map(acl -> acl.pattern().name() + " " + acl.entry()).collect(Collectors.toList()));
        ask("delete acls", () -> admin.deleteAcls(Set.of(made.toFilter())).all().get().size());
        ClientQuotaEntity entity = new ClientQuotaEntity(Map.of("user", "kafbat", "client-id", "ui"));
        Map<String, String> everybody = new java.util.HashMap<>();
        everybody.put("user", null);
        ClientQuotaEntity defaults = new ClientQuotaEntity(everybody);
        ask("set quotas", () -> {
            limit(entity, Map.of("producer_byte_rate", 1e6, "request_percentage", 50.0));
            limit(defaults, Map.of("consumer_byte_rate", 2e6));
            return quotas(ClientQuotaFilter.all());
        });
        List<ClientQuotaFilterComponent> components = List.of(ClientQuotaFilterComponent.ofEntity("user", "kafbat"), ClientQuotaFilterComponent.ofEntityType("client-id"));
        ask("quotas of a user", () -> quotas(ClientQuotaFilter.containsOnly(components)));
        ask("remove quotas", () -> {
            limit(entity, none("producer_byte_rate", "request_percentage"));
            limit(defaults, none("consumer_byte_rate"));
            return quotas(ClientQuotaFilter.all());
        });
        ask("an unknown quota", () -> limit(entity, Map.of("no_such_quota", 1.0)));
    }

    /** Nothing is wanted any more of these. */
    static Map<String, Double> none(String... keys) {
        Map<String, Double> found = new TreeMap<>();
        for (String each : keys) found.put(each, null);
        return found;
    }

    static Void limit(ClientQuotaEntity entity, Map<String, Double> values) throws Exception {
        List<ClientQuotaAlteration.Op> orders = new ArrayList<>();
        values.forEach((key, value) -> orders.add(new ClientQuotaAlteration.Op(key, value)));
        return admin.alterClientQuotas(List.of(new ClientQuotaAlteration(entity, orders))).all().get();
    }

    static Object quotas(ClientQuotaFilter filter) throws Exception {
        Map<String, Object> found = new TreeMap<>();
        admin.describeClientQuotas(filter).entities().get().forEach((entity, values) -> found.put(new TreeMap<>(entity.entries()).toString(), new TreeMap<>(values)));
        return found;
    }

    // what changes and deletes topics

    static void changes() throws Exception {
        ask("replication factor", () -> {
            List<Integer> brokers = ids(admin.describeCluster().nodes().get());
            for (int factor : new int[] {1, 3}) {
                Map<TopicPartition, Optional<NewPartitionReassignment>> wanted = new java.util.HashMap<>();
                TopicDescription told = admin.describeTopics(List.of(TOPIC)).topicNameValues().get(TOPIC).get();
                for (TopicPartitionInfo each : told.partitions()) {
                    List<Integer> replicas = new ArrayList<>(List.of(each.leader().id()));
                    brokers.stream().filter(broker -> broker != each.leader().id()).limit(factor - 1).forEach(replicas::add);
                    wanted.put(part(each.partition()), Optional.of(new NewPartitionReassignment(replicas)));
                }
                admin.alterPartitionReassignments(wanted).all().get();
                while (!admin.listPartitionReassignments().reassignments().get().isEmpty()) Thread.sleep(50);
            }
            return described(TOPIC);
        });
        ask("a replica on an unknown broker", () -> admin.alterPartitionReassignments(Map.of(part(0), Optional.of(new NewPartitionReassignment(List.of(99))))).all().get());
        ask("delete messages", () -> {
            Map<TopicPartition, RecordsToDelete> wanted = new java.util.HashMap<>();
            listed(OffsetSpec.latest()).forEach((part, end) -> wanted.put(part, RecordsToDelete.beforeOffset(end)));
            admin.deleteRecords(wanted).all().get();
            return named(listed(OffsetSpec.earliest()));
        });
        ask("delete messages past the end", () -> admin.deleteRecords(Map.of(part(0), RecordsToDelete.beforeOffset(500))).all().get());
        ask("recreate topic", () -> {
            Object before = described(TOPIC).get("id");
            admin.deleteTopics(List.of(TOPIC)).all().get();
            admin.createTopics(List.of(new NewTopic(TOPIC, Optional.of(3), Optional.of((short) 3)))).all().get();
            return List.of(described(TOPIC).get("id").equals(before), named(listed(OffsetSpec.latest())));
        });
        ask("delete topic", () -> {
            admin.deleteTopics(List.of(TOPIC)).all().get();
            return admin.listTopics(new ListTopicsOptions().listInternal(true)).names().get().contains(TOPIC);
        });
        ask("delete an unknown topic", () -> admin.deleteTopics(List.of("no-such-topic")).all().get());
    }
}
