import java.util.TreeSet;
import org.apache.iceberg.Table;
import org.apache.iceberg.actions.DeleteOrphanFiles;
import org.apache.iceberg.spark.Spark3Util;
import org.apache.iceberg.spark.actions.DeleteOrphanFilesSparkAction;
import org.apache.iceberg.spark.actions.SparkActions;
import org.apache.spark.sql.SparkSession;

/**
 * Spark's remove_orphan_files on a lake in SQLite: what it would delete, nothing is deleted.
 *
 * <p>java ... SparkOrphans CATALOG_DB WAREHOUSE OLDER_THAN_MS list|prefix TABLE... [-- NAME=VALUE...]
 *
 * <p>Prints a JSON object a line: {"table": ..., "orphans": [...]}, or {"table": ..., "refused": why}. Listing is by
 * Hadoop (list) or by the table's own FileIO (prefix); properties after -- are the catalog's.
 */
public class SparkOrphans {
  public static void main(String[] args) throws Exception {
    String catalog = "spark.sql.catalog.lake";
    SparkSession.Builder builder = SparkSession.builder().master("local[2]").appName("orphans")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.warehouse.dir", System.getProperty("java.io.tmpdir") + "/spark-warehouse")
        .config("spark.sql.session.timeZone", "UTC")
        .config(catalog, "org.apache.iceberg.spark.SparkCatalog")
        .config(catalog + ".catalog-impl", "org.apache.iceberg.jdbc.JdbcCatalog")
        .config(catalog + ".uri", "jdbc:sqlite:" + args[0])
        .config(catalog + ".warehouse", args[1])
        .config(catalog + ".cache-enabled", "false");
    int tables = 4;
    while (tables < args.length && !args[tables].equals("--")) tables++;
    for (int i = tables + 1; i < args.length; i++) {
      int at = args[i].indexOf('=');
      builder.config(catalog + "." + args[i].substring(0, at), args[i].substring(at + 1));
    }
    SparkSession spark = builder.getOrCreate();
    for (int i = 4; i < tables; i++) {
      String line;
      try {
        Table table = Spark3Util.loadIcebergTable(spark, "lake." + args[i]);
        DeleteOrphanFilesSparkAction action = SparkActions.get(spark).deleteOrphanFiles(table)
            .olderThan(Long.parseLong(args[2]))
            .usePrefixListing(args[3].equals("prefix"))
            .deleteWith(file -> { });
        DeleteOrphanFiles.Result found = action.execute();
        StringBuilder orphans = new StringBuilder();
        TreeSet<String> sorted = new TreeSet<>();
        found.orphanFileLocations().forEach(sorted::add);
        for (String file : sorted) orphans.append(orphans.length() == 0 ? "" : ",").append(quoted(file));
        line = "\"orphans\":[" + orphans + "]";
      } catch (Exception e) {
        line = "\"refused\":" + quoted(String.valueOf(e.getMessage()));
      }
      System.out.println("{\"table\":" + quoted(args[i]) + "," + line + "}");
    }
    spark.stop();
  }

  static String quoted(String text) {
    StringBuilder out = new StringBuilder("\"");
    for (char c : text.toCharArray()) {
      if (c < ' ') out.append(String.format("\\u%04x", (int) c));
      else if (c == '"' || c == '\\') out.append('\\').append(c);
      else out.append(c);
    }
    return out.append('"').toString();
  }
}
