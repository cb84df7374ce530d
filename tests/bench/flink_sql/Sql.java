import java.nio.file.Files;
import java.nio.file.Path;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.table.api.EnvironmentSettings;
import org.apache.flink.table.api.TableEnvironment;
import org.apache.flink.table.api.TableResult;

/** Runs the SQL statements of a file in a Flink cluster inside this process; "name=value" arguments are settings. */
public final class Sql {
    public static void main(String[] arguments) throws Exception {
        Configuration settings = new Configuration();
        for (int i = 1; i < arguments.length; i++) {
            String[] setting = arguments[i].split("=", 2);
            settings.setString(setting[0], setting[1]);
        }
        TableEnvironment tables = TableEnvironment.create(
                EnvironmentSettings.newInstance().inStreamingMode().withConfiguration(settings).build());
        for (String statement : Files.readString(Path.of(arguments[0])).split(";")) {
            if (statement.isBlank()) {
                continue;
            }
            long began = System.nanoTime();
            TableResult result = tables.executeSql(statement);
            if (result.getJobClient().isPresent()) {
                result.await(); // until the topic's end, or for ever
                System.out.println("job: " + (System.nanoTime() - began) / 1_000_000 + " ms");
            }
        }
    }
}
