import java.io.*;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.*;
import java.util.concurrent.*;
import org.apache.kafka.clients.admin.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.clients.producer.*;
import org.apache.kafka.common.*;
import org.apache.kafka.common.acl.*;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.errors.UnknownTopicOrPartitionException;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.resource.*;
import org.apache.kafka.common.serialization.*;

/**
 * Apache Kafka's own tools and client behind a line protocol: a test pays for one JVM and not for one a question.
 *
 * A request is one line: the client's properties, the command, its arguments, each in hexadecimal, separated by spaces.
 * The answer is any number of rows of the same form, each after "+ ", and then "." or, when the command failed, "! "
 * and what Kafka said. The process ends with its standard input, so it cannot outlive the test process.
 */
public class Console {
  private static final Map<String, Admin> ADMINS = new HashMap<>();
  private static final Map<String, Producer<byte[], byte[]>> PRODUCERS = new HashMap<>();
  private static PrintStream answers;

  public static void main(String[] none) throws Exception {
    answers = new PrintStream(new FileOutputStream(FileDescriptor.out), false, StandardCharsets.US_ASCII);
    System.setOut(System.err); // what the tools print belongs to the log
    BlockingQueue<String> requests = new LinkedBlockingQueue<>();
    new Thread(() -> read(requests)).start();
    while (true) {
      String[] fields = requests.take().split(" ", -1);
      for (int i = 0; i < fields.length; i++) fields[i] = text(fields[i]);
      try {
        obey(fields[0], fields[1], Arrays.copyOfRange(fields, 2, fields.length));
        answers.println(".");
      } catch (Exception error) {
        answers.println("! " + hex(said(error)));
      }
      answers.flush();
    }
  }

  /** On a thread of its own, so that the end of the input is seen whatever a command waits for. */
  private static void read(BlockingQueue<String> requests) {
    try (Scanner lines = new Scanner(System.in, StandardCharsets.US_ASCII)) {
      while (lines.hasNextLine()) requests.add(lines.nextLine());
    }
    Runtime.getRuntime().halt(0); // no client is closed in an orderly way: their brokers may be gone
  }

  private static String said(Throwable error) {
    while (error instanceof ExecutionException && error.getCause() != null) error = error.getCause();
    StringBuilder text = new StringBuilder();
    for (Throwable at = error; at != null; at = at.getCause()) text.append(at == error ? "" : ": ").append(at);
    return text.toString();
  }

  private static void obey(String client, String command, String[] a) throws Exception {
    switch (command) {
      case "format" -> format(a);
      case "create" -> create(client, a[0], Integer.parseInt(a[1]), Short.parseShort(a[2]), settings(a, 3));
      case "partitions" -> grow(client, a[0], Integer.parseInt(a[1]));
      case "delete" -> delete(client, a[0]);
      case "configure" -> configure(client, a[0], settings(a, 1));
      case "describe" -> describe(client, a[0]);
      case "produce" -> produce(client, a[0], a[1], a[2]);
      case "send" -> send(client, a[0], a[1], Arrays.copyOfRange(a, 2, a.length));
      case "dump" -> dump(client, a[0]);
      case "remove" -> remove(client, new TopicPartition(a[0], Integer.parseInt(a[1])), Long.parseLong(a[2]));
      case "committed" -> committed(client, a[0]);
      case "members" -> members(client, a[0]);
      case "move" -> move(client, a[0], new TopicPartition(a[1], Integer.parseInt(a[2])), a[3]);
      case "evict" -> admin(client).removeMembersFromConsumerGroup(a[0], new RemoveMembersFromConsumerGroupOptions()).all().get();
      case "join" -> join(client, a[0], a[1]);
      case "allow" -> admin(client).createAcls(List.of(new AclBinding(pattern(a), entry(a)))).all().get();
      case "revoke" -> admin(client).deleteAcls(List.of(new AclBinding(pattern(a), entry(a)).toFilter())).all().get();
      case "scram" -> scram(client, a[0], a[1]);
      case "rights" -> rights(client);
      case "settings" -> settingsOf(client, a[0]);
      case "users" -> users(client);
      case "topics" -> admin(client).listTopics().names().get().forEach(Console::row);
      case "fetch" -> fetch(client, a[0], a[1]);
      case "controller" -> row(admin(client).describeMetadataQuorum().quorumInfo().get().leaderId());
      default -> throw new IllegalArgumentException(command);
    }
  }

  /** The arguments from that one on, each "name=value". */
  private static Map<String, String> settings(String[] arguments, int from) {
    Map<String, String> settings = new HashMap<>();
    for (int i = from; i < arguments.length; i++) {
      String[] parts = arguments[i].split("=", 2);
      settings.put(parts[0], parts[1]);
    }
    return settings;
  }

  private static void format(String[] arguments) {
    ByteArrayOutputStream said = new ByteArrayOutputStream();
    int status = kafka.tools.StorageTool.execute(arguments, new PrintStream(said));
    if (status != 0) throw new IllegalStateException(said.toString());
  }

  private static void create(String client, String topic, int partitions, short replicas, Map<String, String> settings)
      throws Exception {
    NewTopic created = new NewTopic(topic, partitions, replicas).configs(settings);
    admin(client).createTopics(List.of(created)).all().get();
    // Answered by the controller; the brokers learn of it a moment later.
    while (inSync(client, topic, replicas) != partitions) Thread.sleep(10); // pace
  }

  /** How many partitions have a leader and that many replicas in sync. */
  private static long inSync(String client, String topic, int replicas) throws Exception {
    try {
      return partitionsOf(client, topic).stream()
          .filter(partition -> partition.leader() != null && partition.isr().size() == replicas).count();
    } catch (ExecutionException unknown) {
      if (unknown.getCause() instanceof UnknownTopicOrPartitionException) return 0;
      throw unknown;
    }
  }

  private static void grow(String client, String topic, int partitions) throws Exception {
    admin(client).createPartitions(Map.of(topic, NewPartitions.increaseTo(partitions))).all().get();
    while (partitionsOf(client, topic).stream().filter(partition -> partition.leader() != null).count() < partitions)
      Thread.sleep(10); // pace
    forgetProducer(client);
  }

  private static void delete(String client, String topic) throws Exception {
    admin(client).deleteTopics(List.of(topic)).all().get();
    forgetProducer(client);
  }

  /** A producer asks only now and then which partitions a topic has, and so the next one is a new one. */
  private static void forgetProducer(String client) {
    Producer<byte[], byte[]> producer = PRODUCERS.remove(client);
    if (producer != null) producer.close();
  }

  private static void configure(String client, String topic, Map<String, String> settings) throws Exception {
    List<AlterConfigOp> changes = new ArrayList<>();
    settings.forEach((name, value) ->
        changes.add(new AlterConfigOp(new ConfigEntry(name, value), AlterConfigOp.OpType.SET)));
    ConfigResource resource = new ConfigResource(ConfigResource.Type.TOPIC, topic);
    admin(client).incrementalAlterConfigs(Map.of(resource, changes)).all().get();
    while (!shows(client, resource, settings)) Thread.sleep(10); // pace
  }

  private static boolean shows(String client, ConfigResource resource, Map<String, String> settings) throws Exception {
    Config now = admin(client).describeConfigs(List.of(resource)).all().get().get(resource);
    return settings.entrySet().stream().allMatch(e -> now.get(e.getKey()).value().equals(e.getValue()));
  }

  private static void describe(String client, String topic) throws Exception {
    for (TopicPartitionInfo partition : partitionsOf(client, topic)) {
      String isr = String.join(",", partition.isr().stream().map(Node::idString).toList());
      row(partition.partition(), partition.leader() == null ? -1 : partition.leader().id(), isr);
    }
  }

  private static List<TopicPartitionInfo> partitionsOf(String client, String topic) throws Exception {
    return admin(client).describeTopics(List.of(topic)).allTopicNames().get().get(topic).partitions();
  }

  private static void produce(String client, String topic, String key, String value) throws Exception {
    byte[] bytes = key.isEmpty() ? null : key.getBytes(StandardCharsets.UTF_8);
    ProducerRecord<byte[], byte[]> sent = new ProducerRecord<>(topic, bytes, value.getBytes(StandardCharsets.UTF_8));
    RecordMetadata at = producer(client).send(sent).get();
    row(at.partition(), at.offset());
  }

  /** Each record is "key value name value ...", in hexadecimal or "-" for null. In a transaction, if there is an end. */
  private static void send(String client, String topic, String end, String[] records) throws Exception {
    boolean transaction = !end.isEmpty();
    String login = transaction ? client + "\ntransactional.id=console" : client;
    Producer<byte[], byte[]> producer = producer(login);
    try {
      if (transaction) {
        producer.initTransactions();
        producer.beginTransaction();
      }
      List<Future<RecordMetadata>> sent = new ArrayList<>();
      for (String record : records) sent.add(producer.send(foreign(topic, record.split(" ", -1))));
      for (Future<RecordMetadata> each : sent) row(each.get().partition(), each.get().offset());
      if (end.equals("commit")) producer.commitTransaction();
      if (end.equals("abort")) producer.abortTransaction();
    } finally {
      // A producer initialises its transactions once.
      if (transaction) forgetProducer(login);
    }
  }

  private static ProducerRecord<byte[], byte[]> foreign(String topic, String[] fields) {
    ProducerRecord<byte[], byte[]> record = new ProducerRecord<>(topic, bytes(fields[0]), bytes(fields[1]));
    for (int i = 2; i < fields.length; i += 2) record.headers().add(text(fields[i]), bytes(fields[i + 1]));
    return record;
  }

  private static byte[] bytes(String hex) {
    return hex.equals("-") ? null : HexFormat.of().parseHex(hex);
  }

  /** What lies below that offset is gone, as after retention. */
  private static void remove(String client, TopicPartition partition, long offset) throws Exception {
    admin(client).deleteRecords(Map.of(partition, RecordsToDelete.beforeOffset(offset))).all().get();
  }

  /** The committed positions of a group: topic, partition, offset. */
  private static void committed(String client, String group) throws Exception {
    var found = admin(client).listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata().get();
    found.forEach((at, position) -> row(at.topic(), at.partition(), position == null ? null : position.offset()));
  }

  /** The members of a group: client, and how many partitions the group gave it. */
  private static void members(String client, String group) throws Exception {
    for (MemberDescription member : admin(client).describeConsumerGroups(List.of(group)).all().get().get(group).members())
      row(member.clientId(), member.assignment().topicPartitions().size());
  }

  /** Moves the committed position of a group without members, as `--reset-offsets` does; to nowhere, it is deleted. */
  private static void move(String client, String group, TopicPartition partition, String to) throws Exception {
    if (to.isEmpty()) admin(client).deleteConsumerGroupOffsets(group, Set.of(partition)).all().get();
    else admin(client).alterConsumerGroupOffsets(group, Map.of(partition, new OffsetAndMetadata(Long.parseLong(to)))).all().get();
  }

  /** A member with the Java client's own settings, which polls until the console ends. */
  private static void join(String client, String group, String topic) throws Exception {
    Consumer<byte[], byte[]> member = new KafkaConsumer<>(
        properties(client + "\npartition.assignment.strategy=org.apache.kafka.clients.consumer.RangeAssignor\ngroup.id=" + group),
        new ByteArrayDeserializer(), new ByteArrayDeserializer());
    CountDownLatch joined = new CountDownLatch(1);
    Thread polls = new Thread(() -> {
      member.subscribe(List.of(topic));
      while (true) {
        member.poll(Duration.ofMillis(200));
        if (!member.assignment().isEmpty()) joined.countDown();
      }
    });
    polls.setDaemon(true);
    polls.start();
    if (!joined.await(60, TimeUnit.SECONDS)) throw new IllegalStateException("no partition came");
  }

  /** All that is in the topic now: partition, offset, time, key, value, and name and value of each header. */
  private static void dump(String client, String topic) throws Exception {
    try (Consumer<byte[], byte[]> consumer =
        new KafkaConsumer<>(properties(client), new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
      List<TopicPartition> all =
          consumer.partitionsFor(topic).stream().map(p -> new TopicPartition(topic, p.partition())).toList();
      consumer.assign(all);
      consumer.seekToBeginning(all);
      Map<TopicPartition, Long> ends = consumer.endOffsets(all);
      while (all.stream().anyMatch(partition -> consumer.position(partition) < ends.get(partition)))
        consumer.poll(Duration.ofMillis(200)).forEach(Console::record);
    }
  }

  private static void record(ConsumerRecord<byte[], byte[]> record) {
    List<Object> fields = new ArrayList<>();
    Collections.addAll(fields, record.partition(), record.offset(), record.timestamp(), record.key(), record.value());
    for (Header header : record.headers()) Collections.addAll(fields, header.key(), header.value());
    row(fields.toArray());
  }

  /** PRINCIPAL OPERATION TYPE NAME LITERAL|PREFIXED */
  private static ResourcePattern pattern(String[] a) {
    return new ResourcePattern(ResourceType.fromString(a[2]), a[3], PatternType.fromString(a[4]));
  }

  private static AccessControlEntry entry(String[] a) {
    return new AccessControlEntry(a[0], "*", AclOperation.fromString(a[1]), AclPermissionType.ALLOW);
  }

  private static void scram(String client, String user, String password) throws Exception {
    // Two requests: one must not name a user twice.
    for (ScramMechanism mechanism : List.of(ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512)) {
      var change = new UserScramCredentialUpsertion(user, new ScramCredentialInfo(mechanism, 4096), password);
      admin(client).alterUserScramCredentials(List.of(change)).all().get();
    }
  }

  /** All rights: principal, host, operation, permission, type, name, pattern. */
  private static void rights(String client) throws Exception {
    for (AclBinding right : admin(client).describeAcls(AclBindingFilter.ANY).values().get())
      row(right.entry().principal(), right.entry().host(), right.entry().operation(), right.entry().permissionType(),
          right.pattern().resourceType(), right.pattern().name(), right.pattern().patternType());
  }

  /** The settings of a topic that somebody has set. */
  private static void settingsOf(String client, String topic) throws Exception {
    ConfigResource resource = new ConfigResource(ConfigResource.Type.TOPIC, topic);
    for (ConfigEntry entry : admin(client).describeConfigs(List.of(resource)).all().get().get(resource).entries())
      if (entry.source() == ConfigEntry.ConfigSource.DYNAMIC_TOPIC_CONFIG) row(entry.name(), entry.value());
  }

  /** The users with passwords: name, mechanism, iterations. */
  private static void users(String client) throws Exception {
    for (UserScramCredentialsDescription user : admin(client).describeUserScramCredentials().all().get().values())
      for (ScramCredentialInfo kept : user.credentialInfos()) row(user.name(), kept.mechanism(), kept.iterations());
  }

  /** Reads a topic as a member of a group, until it has a partition and has asked it for records. */
  private static void fetch(String client, String group, String topic) throws Exception {
    Properties properties = properties(client);
    properties.put("group.id", group);
    properties.put("auto.offset.reset", "earliest");
    properties.put("enable.auto.commit", "false");
    properties.put("exclude.internal.topics", "false");
    try (Consumer<byte[], byte[]> member =
        new KafkaConsumer<>(properties, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
      member.subscribe(List.of(topic));
      long until = System.nanoTime() + TimeUnit.SECONDS.toNanos(60);
      while (System.nanoTime() < until) {
        member.poll(Duration.ofMillis(100)); // a right that is missing is thrown here
        if (!member.assignment().isEmpty()) {
          for (TopicPartition at : member.assignment()) member.position(at, Duration.ofSeconds(30));
          member.poll(Duration.ofMillis(100));
          return;
        }
      }
      throw new IllegalStateException("no partition came");
    }
  }

  private static Properties properties(String client) throws IOException {
    Properties properties = new Properties();
    properties.load(new StringReader(client));
    return properties;
  }

  private static Admin admin(String client) throws IOException {
    if (!ADMINS.containsKey(client)) ADMINS.put(client, Admin.create(properties(client)));
    return ADMINS.get(client);
  }

  private static Producer<byte[], byte[]> producer(String client) throws IOException {
    if (!PRODUCERS.containsKey(client)) {
      ByteArraySerializer bytes = new ByteArraySerializer();
      Properties properties = properties(client);
      // A new topic may refuse a first request and take the second: then the first is out of sequence for ever.
      properties.put("max.in.flight.requests.per.connection", "1");
      // A topic may take large records; ours is not the limit.
      properties.put("max.request.size", "16777216");
      PRODUCERS.put(client, new KafkaProducer<>(properties, bytes, bytes));
    }
    return PRODUCERS.get(client);
  }

  /** A field is text, a number, bytes, or null, which is "-". */
  private static void row(Object... fields) {
    StringBuilder line = new StringBuilder("+");
    for (Object field : fields) {
      line.append(' ');
      if (field == null) line.append('-');
      else if (field instanceof byte[] bytes) line.append(HexFormat.of().formatHex(bytes));
      else line.append(hex(field.toString()));
    }
    answers.println(line);
  }

  private static String hex(String text) {
    return HexFormat.of().formatHex(text.getBytes(StandardCharsets.UTF_8));
  }

  private static String text(String hex) {
    return new String(HexFormat.of().parseHex(hex), StandardCharsets.UTF_8);
  }
}
