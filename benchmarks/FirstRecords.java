import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.Properties;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/** Sends one record to each topic that is named on a line of standard input, and prints after how many seconds it was acknowledged. */
public class FirstRecords {
    public static void main(String[] arguments) throws Exception {
        Properties properties = new Properties();
        properties.put("bootstrap.servers", arguments[0]);
        byte[] value = new byte[100];
        BufferedReader topics = new BufferedReader(new InputStreamReader(System.in));
        try (KafkaProducer<byte[], byte[]> producer =
                new KafkaProducer<>(properties, new ByteArraySerializer(), new ByteArraySerializer())) {
            for (String topic = topics.readLine(); topic != null; topic = topics.readLine()) {
                long start = System.nanoTime();
                producer.send(new ProducerRecord<>(topic, value)).get();
                System.out.println((System.nanoTime() - start) / 1e9);
            }
        }
    }
}
