package org.apache.iceberg.rest; // RESTCatalogAdapter.handleRequest takes the package-private Route

import icewarden.LocalIO;
import jakarta.servlet.ServletException;
import jakarta.servlet.ServletOutputStream;
import jakarta.servlet.WriteListener;
import jakarta.servlet.http.HttpServletRequest;
import jakarta.servlet.http.HttpServletResponse;
import jakarta.servlet.http.HttpServletResponseWrapper;
import java.io.File;
import java.io.IOException;
import java.io.PrintWriter;
import java.io.Writer;
import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.Statement;
import java.util.Map;
import java.util.Queue;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentLinkedQueue;
import org.apache.iceberg.jdbc.JdbcCatalog;
import org.eclipse.jetty.ee10.servlet.ServletContextHandler;
import org.eclipse.jetty.ee10.servlet.ServletHolder;
import org.eclipse.jetty.server.Server;
import org.eclipse.jetty.server.ServerConnector;

/**
 * A genuine Iceberg REST catalog on loopback: Iceberg's own adapter and servlet over JdbcCatalog on a SQLite file, which
 * others may use at the same time. It ends when its stdin does, so that it cannot outlive a killed test.
 *
 * <pre>java -cp 'classes:lib/*' org.apache.iceberg.rest.RestFixture CATALOG DB WAREHOUSE</pre>
 *
 * Prints "listening PORT". POST /_fault?when=before|after&status=503&method=POST&path=REGEX&times=1 makes the next such
 * requests fail; "after" applies them first, which leaves the client with an unknown outcome. GET /_log tells one line a
 * request: METHOD PATH STATUS.
 */
public class RestFixture {
  static final Queue<String> LOG = new ConcurrentLinkedQueue<>();
  static volatile Map<String, String> fault = new ConcurrentHashMap<>();

  public static void main(String[] args) throws Exception {
    String uri = "jdbc:sqlite:" + args[1];
    boolean isNew = !new File(args[1]).exists();
    // Write-ahead logging lets others read and write the file while we hold it open.
    try (Connection connection = DriverManager.getConnection(uri); Statement statement = connection.createStatement()) {
      statement.execute("pragma journal_mode=wal");
    }
    JdbcCatalog catalog = new JdbcCatalog(properties -> new LocalIO(), null, isNew);
    catalog.initialize(args[0], Map.of("uri", uri, "warehouse", args[2], "clients", "1", "jdbc.schema-version", "V1",
        "jdbc.init-catalog-tables", "" + isNew, "jdbc.busy_timeout", "10000"));

    Server server = new Server();
    ServerConnector connector = new ServerConnector(server);
    connector.setHost("127.0.0.1");
    server.addConnector(connector);
    ServletContextHandler handler = new ServletContextHandler(ServletContextHandler.NO_SESSIONS);
    handler.addServlet(new ServletHolder(new FaultyServlet(new RESTCatalogAdapter(catalog))), "/*");
    server.setHandler(handler);
    server.start();
    System.out.println("listening " + connector.getLocalPort());
    while (System.in.read() >= 0) {}
    System.exit(0);
  }

  static class FaultyServlet extends RESTCatalogServlet {
    FaultyServlet(RESTCatalogAdapter adapter) {
      super(adapter);
    }

    @Override
    protected void service(HttpServletRequest request, HttpServletResponse response) throws ServletException, IOException {
      String path = request.getRequestURI();
      if (path.equals("/_log")) {
        for (String line : LOG) {
          response.getOutputStream().println(line);
        }
        return;
      }
      if (path.equals("/_fault")) {
        Map<String, String> next = new ConcurrentHashMap<>();
        request.getParameterMap().forEach((key, values) -> next.put(key, values[0]));
        fault = next;
        return;
      }
      Map<String, String> now = fault;
      int times = Integer.parseInt(now.getOrDefault("times", "1"));
      boolean fails = now.containsKey("when") && times > 0 && request.getMethod().equals(now.getOrDefault("method", "POST"))
          && path.matches(now.getOrDefault("path", ".*"));
      if (fails) {
        now.put("times", "" + (times - 1));
        if (now.get("when").equals("after")) {
          super.service(request, new Discarding(response));
        }
        response.setStatus(Integer.parseInt(now.getOrDefault("status", "503")));
        response.setContentType("application/json");
        response.getOutputStream().print("{\"error\":{\"message\":\"injected\",\"type\":\"ServiceFailure\",\"code\":" + response.getStatus() + "}}");
      } else {
        super.service(request, response);
      }
      LOG.add(request.getMethod() + " " + path + " " + response.getStatus());
    }
  }

  /** Takes an answer and drops it. */
  static class Discarding extends HttpServletResponseWrapper {
    Discarding(HttpServletResponse response) {
      super(response);
    }

    @Override public void setStatus(int status) {}
    @Override public void setHeader(String name, String value) {}
    @Override public void setContentType(String type) {}

    @Override
    public ServletOutputStream getOutputStream() {
      return new ServletOutputStream() {
        @Override public void write(int b) {}
        @Override public boolean isReady() { return true; }
        @Override public void setWriteListener(WriteListener listener) {}
      };
    }

    @Override
    public PrintWriter getWriter() {
      return new PrintWriter(Writer.nullWriter());
    }
  }
}
