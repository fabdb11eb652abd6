import icewarden.LocalIO;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import java.util.stream.Collectors;
import org.apache.iceberg.ExpireSnapshots;
import org.apache.iceberg.Snapshot;
import org.apache.iceberg.Table;
import org.apache.iceberg.catalog.TableIdentifier;
import org.apache.iceberg.exceptions.ValidationException;
import org.apache.iceberg.jdbc.JdbcCatalog;

/**
 * The oracle: Apache Iceberg's own expireSnapshots with its file clean-up, on a lake in SQLite.
 *
 * <pre>java -cp 'classes:lib/*' CoreOracle DB WAREHOUSE CATALOG OLDER_THAN_MS|- RETAIN_LAST|- NS.TABLE...</pre>
 *
 * "-" leaves an option to the table's own properties. One JSON line a table on stdout: its expired snapshots and dropped
 * refs, or why Iceberg refused. Which files went is for the caller to see on the disk.
 */
public class CoreOracle {
  public static void main(String[] args) {
    JdbcCatalog catalog = new JdbcCatalog(properties -> new LocalIO(), null, false);
    catalog.initialize(args[2], Map.of("uri", "jdbc:sqlite:" + args[0], "warehouse", args[1],
        "jdbc.schema-version", "V1", "jdbc.init-catalog-tables", "false"));
    for (String name : Arrays.asList(args).subList(5, args.length)) {
      System.out.println("{\"table\":\"" + name + "\"," + expire(catalog.loadTable(TableIdentifier.parse(name)), args[3], args[4]) + "}");
    }
    System.exit(0); // Iceberg's worker pools are not daemons
  }

  static String expire(Table table, String olderThan, String retainLast) {
    Set<Long> snapshots = ids(table);
    List<String> refs = new ArrayList<>(table.refs().keySet());
    try {
      ExpireSnapshots expire = table.expireSnapshots();
      if (!olderThan.equals("-")) {
        expire.expireOlderThan(Long.parseLong(olderThan));
      }
      if (!retainLast.equals("-")) {
        expire.retainLast(Integer.parseInt(retainLast));
      }
      expire.commit();
    } catch (ValidationException e) {
      return "\"refused\":\"" + e.getMessage().replace('"', '\'') + "\"";
    }
    table.refresh();
    snapshots.removeAll(ids(table));
    refs.removeAll(table.refs().keySet());
    String dropped = refs.stream().sorted().map(ref -> '"' + ref + '"').collect(Collectors.joining(","));
    return "\"expired\":" + snapshots + ",\"dropped\":[" + dropped + "]";
  }

  static Set<Long> ids(Table table) {
    Set<Long> ids = new TreeSet<>();
    for (Snapshot snapshot : table.snapshots()) {
      ids.add(snapshot.snapshotId());
    }
    return ids;
  }
}
