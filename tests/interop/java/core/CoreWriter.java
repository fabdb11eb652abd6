import icewarden.LocalIO;
import java.io.IOException;
import java.io.OutputStream;
import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.Map;
import java.util.UUID;
import org.apache.iceberg.DataFile;
import org.apache.iceberg.DataFiles;
import org.apache.iceberg.FileFormat;
import org.apache.iceberg.FileMetadata;
import org.apache.iceberg.GenericStatisticsFile;
import org.apache.iceberg.ImmutableGenericPartitionStatisticsFile;
import org.apache.iceberg.PartitionSpec;
import org.apache.iceberg.RowDelta;
import org.apache.iceberg.Schema;
import org.apache.iceberg.Table;
import org.apache.iceberg.catalog.TableIdentifier;
import org.apache.iceberg.deletes.BaseDVFileWriter;
import org.apache.iceberg.deletes.DVFileWriter;
import org.apache.iceberg.rest.RESTCatalog;
import org.apache.iceberg.types.Types;

/**
 * A format 3 table, which pyiceberg cannot write: deletion vectors (two in one Puffin file, one of whose data files goes
 * later), an equality delete file, a branch and a tag with retention, a staged snapshot, statistics of both kinds on an
 * old snapshot and on the current one. Data files are dummies of the right size: right for maintenance, not for scans.
 *
 * <pre>java -cp 'classes:lib/*' CoreWriter REST_URI NS.TABLE</pre>
 */
public class CoreWriter {
  static final long DAY = 86_400_000L;
  static Table table;
  static int files = 0;

  public static void main(String[] args) throws Exception {
    RESTCatalog catalog = new RESTCatalog();
    catalog.initialize("writer", Map.of("uri", args[0], "io-impl", LocalIO.class.getName()));
    TableIdentifier name = TableIdentifier.parse(args[1]);
    catalog.createNamespace(name.namespace());
    Schema schema = new Schema(Types.NestedField.optional(1, "id", Types.LongType.get()));
    table = catalog.createTable(name, schema, PartitionSpec.unpartitioned(), Map.of("format-version", "3"));

    DataFile one = data("one"), two = data("two"), three = data("three");
    table.newAppend().appendFile(one).appendFile(two).appendFile(three).commit();
    vectors(one, two);
    long forked = table.currentSnapshot().snapshotId();
    table.manageSnapshots().createTag("eom", forked).setMaxRefAgeMs("eom", 30 * DAY).commit();
    table.manageSnapshots().createBranch("pr_1", forked)
        .setMaxRefAgeMs("pr_1", 7 * DAY).setMinSnapshotsToKeep("pr_1", 2).setMaxSnapshotAgeMs("pr_1", DAY).commit();
    table.newAppend().appendFile(data("branch")).toBranch("pr_1").commit();
    table.newOverwrite().deleteFile(three).addFile(data("three-again")).commit();
    statistics(table.currentSnapshot().snapshotId());
    table.newDelete().deleteFile(two).commit();
    DataFile shortLived = data("short-lived");
    table.newAppend().appendFile(shortLived).commit();
    vectors(shortLived);
    table.newDelete().deleteFile(shortLived).commit();
    equalityDelete();
    table.newAppend().appendFile(data("staged")).stageOnly().set("wap.id", "w1").commit();
    statistics(table.currentSnapshot().snapshotId());
    System.exit(0); // the catalog's threads are not daemons
  }

  static OutputStream create(String location) {
    return table.io().newOutputFile(location).create();
  }

  static String location(String kind, String extension) {
    return table.locationProvider().newDataLocation(kind + files++ + "-" + UUID.randomUUID() + extension);
  }

  static DataFile data(String rows) throws IOException {
    String location = location("data", ".parquet");
    byte[] bytes = ("PAR1" + rows + "PAR1").getBytes(StandardCharsets.UTF_8);
    try (OutputStream out = create(location)) {
      out.write(bytes);
    }
    return DataFiles.builder(table.spec()).withPath(location).withFileSizeInBytes(bytes.length)
        .withRecordCount(100).withFormat(FileFormat.PARQUET).build();
  }

  /** One Puffin file with a deletion vector for each of the data files. */
  static void vectors(DataFile... dataFiles) throws IOException {
    String location = location("vectors", ".puffin");
    DVFileWriter writer = new BaseDVFileWriter(() -> table.io().newOutputFile(location), path -> null);
    for (DataFile file : dataFiles) {
      for (long position : new long[] {1, 3, 5}) {
        writer.delete(file.location(), position, table.spec(), file.partition());
      }
    }
    writer.close();
    RowDelta delta = table.newRowDelta();
    writer.result().deleteFiles().forEach(delta::addDeletes);
    delta.commit();
  }

  static void equalityDelete() throws IOException {
    String location = location("equality", ".parquet");
    try (OutputStream out = create(location)) {
      out.write("PAR1eqPAR1".getBytes(StandardCharsets.UTF_8));
    }
    table.newRowDelta().addDeletes(FileMetadata.deleteFileBuilder(table.spec()).ofEqualityDeletes(1).withPath(location)
        .withFileSizeInBytes(10).withRecordCount(1).withFormat(FileFormat.PARQUET).build()).commit();
  }

  static void statistics(long snapshot) throws IOException {
    String whole = table.location() + "/metadata/stats-" + snapshot + ".puffin";
    String partitions = table.location() + "/metadata/partition-stats-" + snapshot + ".parquet";
    for (String location : List.of(whole, partitions)) {
      try (OutputStream out = create(location)) {
        out.write("dummy".getBytes(StandardCharsets.UTF_8));
      }
    }
    table.updateStatistics().setStatistics(new GenericStatisticsFile(snapshot, whole, 5, 1, List.of())).commit();
    table.updatePartitionStatistics().setPartitionStatistics(ImmutableGenericPartitionStatisticsFile.builder()
        .snapshotId(snapshot).path(partitions).fileSizeInBytes(5).build()).commit();
  }
}
