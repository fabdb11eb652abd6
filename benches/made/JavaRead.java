import java.lang.management.ManagementFactory;
import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import org.apache.iceberg.ManifestContent;
import org.apache.iceberg.ManifestFile;
import org.apache.iceberg.ManifestFiles;
import org.apache.iceberg.PartitionSpec;
import org.apache.iceberg.inmemory.InMemoryFileIO;
import org.apache.iceberg.io.CloseableIterable;

/**
 * How fast Iceberg Java reads the manifests of `cargo bench --bench manifests`, which starts it: `ManifestFiles.readPaths`,
 * which projects the location alone and is what its own clean-up uses. From memory, one thread, CPU time, the median of
 * seven after twenty rounds that warm it up.
 *
 * <pre>java -cp "$ICEWARDEN_JAVA_CORE" JavaRead.java FILE...</pre> prints entries a second, a line for each file.
 */
public class JavaRead {
  static final int WARM = 20;
  static final int ROUNDS = 7;
  static final Map<Integer, PartitionSpec> SPECS = Map.of(0, PartitionSpec.unpartitioned());

  public static void main(String[] args) throws Exception {
    for (String arg : args) {
      byte[] bytes = Files.readAllBytes(Path.of(arg));
      InMemoryFileIO io = new InMemoryFileIO();
      io.addFile(arg, bytes);
      ManifestFile manifest = new Made(arg, bytes.length);
      double[] rates = new double[ROUNDS];
      for (int round = -WARM; round < ROUNDS; round++) {
        long count = 0;
        long hash = 0;
        long began = ManagementFactory.getThreadMXBean().getCurrentThreadCpuTime();
        try (CloseableIterable<String> paths = ManifestFiles.readPaths(manifest, io, SPECS)) {
          for (String path : paths) {
            count++;
            hash = 31 * hash + path.hashCode();
          }
        }
        long took = ManagementFactory.getThreadMXBean().getCurrentThreadCpuTime() - began;
        if (round >= 0) {
          rates[round] = 1e9 * count / took;
        }
        if (count == 0 || hash == 0) {
          throw new IllegalStateException("nothing read");
        }
      }
      Arrays.sort(rates);
      System.out.printf(java.util.Locale.ROOT, "%.1f%n", rates[ROUNDS / 2]);
    }
  }

  /** A manifest as a list would name it. */
  record Made(String path, long length) implements ManifestFile {
    public int partitionSpecId() { return 0; }
    public ManifestContent content() { return path.contains("vectors") ? ManifestContent.DELETES : ManifestContent.DATA; }
    public long sequenceNumber() { return 1; }
    public long minSequenceNumber() { return 1; }
    public Long snapshotId() { return 1L; }
    public Integer addedFilesCount() { return null; }
    public Long addedRowsCount() { return null; }
    public Integer existingFilesCount() { return null; }
    public Long existingRowsCount() { return null; }
    public Integer deletedFilesCount() { return null; }
    public Long deletedRowsCount() { return null; }
    public List<PartitionFieldSummary> partitions() { return null; }
    public ByteBuffer keyMetadata() { return null; }
    public Long firstRowId() { return 0L; }
    public ManifestFile copy() { return this; }
  }
}
