package icewarden;

import java.io.File;
import org.apache.iceberg.Files;
import org.apache.iceberg.io.FileIO;
import org.apache.iceberg.io.InputFile;
import org.apache.iceberg.io.OutputFile;
import org.apache.iceberg.io.PositionOutputStream;
import org.apache.iceberg.io.SeekableInputStream;

/** Local files without Hadoop: /x, file:/x and file:///x all work, and a file keeps the location it was asked for by. */
public class LocalIO implements FileIO {
  static String path(String location) {
    return location.replaceFirst("^file:(//)?", "");
  }

  @Override
  public InputFile newInputFile(String location) {
    InputFile file = Files.localInput(path(location));
    return new InputFile() {
      public long getLength() { return file.getLength(); }
      public SeekableInputStream newStream() { return file.newStream(); }
      public String location() { return location; }
      public boolean exists() { return file.exists(); }
    };
  }

  @Override
  public OutputFile newOutputFile(String location) {
    OutputFile file = Files.localOutput(path(location));
    return new OutputFile() {
      public PositionOutputStream create() { return file.create(); }
      public PositionOutputStream createOrOverwrite() { return file.createOrOverwrite(); }
      public String location() { return location; }
      public InputFile toInputFile() { return newInputFile(location); }
    };
  }

  @Override
  public void deleteFile(String location) {
    if (!new File(path(location)).delete()) {
      throw new RuntimeException("not deleted: " + location);
    }
  }
}
