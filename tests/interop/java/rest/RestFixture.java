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
import java.nio.charset.StandardCharsets;
import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.Statement;
import java.util.Arrays;
import java.util.HashMap;
import java.util.Map;
import java.util.Queue;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.function.Consumer;
import org.apache.iceberg.jdbc.JdbcCatalog;
import org.apache.iceberg.rest.responses.LoadTableResponse;
import org.eclipse.jetty.ee10.servlet.ServletContextHandler;
import org.eclipse.jetty.ee10.servlet.ServletContextRequest;
import org.eclipse.jetty.ee10.servlet.ServletHolder;
import org.eclipse.jetty.http.UriCompliance;
import org.eclipse.jetty.server.HttpConfiguration;
import org.eclipse.jetty.server.HttpConnectionFactory;
import org.eclipse.jetty.server.Server;
import org.eclipse.jetty.server.ServerConnector;

/**
 * A genuine Iceberg REST catalog on loopback: Iceberg's own adapter and servlet over JdbcCatalog on a SQLite file, which
 * others may use at the same time. It ends when its stdin does, so that it cannot outlive a killed test.
 *
 * <pre>java -cp 'classes:lib/*' org.apache.iceberg.rest.RestFixture CATALOG DB WAREHOUSE [NAME=VALUE...]</pre>
 *
 * token=SECRET lets nobody in without that token; config.NAME=VALUE is put into the "config" of every table, which is how
 * keys to storage are lent; all else is for the catalog, such as io-impl=org.apache.iceberg.aws.s3.S3FileIO.
 *
 * Prints "listening PORT". POST /_fault?when=before|after|hang&status=503&method=POST&path=REGEX&times=1 makes the next
 * such requests fail, from the one after &skip=N of them on; "after" applies them first, which leaves the client with an
 * unknown outcome; "hang" too, and then says nothing for &ms=N and hangs up. The body of the request, if any, is the
 * answer. GET /_log tells one line a request: METHOD PATH?QUERY STATUS.
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
    Map<String, String> properties = new HashMap<>(Map.of("uri", uri, "warehouse", args[2], "clients", "1",
        "jdbc.schema-version", "V1", "jdbc.init-catalog-tables", "" + isNew, "jdbc.busy_timeout", "10000"));
    Map<String, String> config = new HashMap<>();
    String token = null;
    for (String argument : Arrays.asList(args).subList(3, args.length)) {
      String name = argument.substring(0, argument.indexOf('='));
      String value = argument.substring(name.length() + 1);
      if (name.equals("token")) {
        token = value;
      } else if (name.startsWith("config.")) {
        config.put(name.substring("config.".length()), value);
      } else {
        properties.put(name, value);
      }
    }
    JdbcCatalog catalog = new JdbcCatalog(properties.containsKey("io-impl") ? null : all -> new LocalIO(), null, isNew);
    catalog.initialize(args[0], properties);
    RESTCatalogAdapter adapter = new RESTCatalogAdapter(catalog) {
      @Override
      public <T extends RESTResponse> T handleRequest(Route route, Map<String, String> variables, HTTPRequest request,
          Class<T> type, Consumer<Map<String, String>> headers) {
        T answer = super.handleRequest(route, variables, request, type, headers);
        if (answer instanceof LoadTableResponse) {
          ((LoadTableResponse) answer).config().putAll(config);
        }
        return answer;
      }
    };

    Server server = new Server();
    // Names may hold a slash, which Jetty refuses in a path otherwise.
    HttpConfiguration http = new HttpConfiguration();
    http.setUriCompliance(UriCompliance.UNSAFE);
    ServerConnector connector = new ServerConnector(server, new HttpConnectionFactory(http));
    connector.setHost("127.0.0.1");
    server.addConnector(connector);
    ServletContextHandler handler = new ServletContextHandler(ServletContextHandler.NO_SESSIONS);
    handler.addServlet(new ServletHolder(new FaultyServlet(adapter, token)), "/*");
    handler.getServletHandler().setDecodeAmbiguousURIs(true);
    server.setHandler(handler);
    server.start();
    System.out.println("listening " + connector.getLocalPort());
    while (System.in.read() >= 0) {}
    System.exit(0);
  }

  static class FaultyServlet extends RESTCatalogServlet {
    private final String token;

    FaultyServlet(RESTCatalogAdapter adapter, String token) {
      super(adapter);
      this.token = token;
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
        next.put("body", new String(request.getInputStream().readAllBytes(), StandardCharsets.UTF_8));
        fault = next;
        return;
      }
      Map<String, String> now = fault;
      boolean fails = isFor(now, request) && count(now, "skip", 0) == 0 && count(now, "times", 1) > 0;
      if (fails) {
        String when = now.get("when");
        if (!when.equals("before")) {
          super.service(request, new Discarding(response));
        }
        if (when.equals("hang")) {
          try {
            Thread.sleep(Long.parseLong(now.get("ms")));
          } catch (InterruptedException end) {
            return;
          }
          ServletContextRequest.getServletContextRequest(request).getConnectionMetaData().getConnection().getEndPoint().close();
          return;
        }
        String body = now.get("body");
        answer(response, Integer.parseInt(now.getOrDefault("status", "503")), body.isEmpty() ? error("injected") : body);
      } else if (token != null && !path.equals("/v1/oauth/tokens")
          && !("Bearer " + token).equals(request.getHeader("Authorization"))) {
        answer(response, 401, error("bad token"));
      } else {
        super.service(request, response);
      }
      String query = request.getQueryString() == null ? "" : "?" + request.getQueryString();
      LOG.add(request.getMethod() + " " + path + query + " " + response.getStatus());
    }

    static boolean isFor(Map<String, String> fault, HttpServletRequest request) {
      return fault.containsKey("when") && request.getMethod().equals(fault.getOrDefault("method", "POST"))
          && request.getRequestURI().matches(fault.getOrDefault("path", ".*"));
    }

    /** Counts down to nothing; what it was before. */
    static synchronized int count(Map<String, String> fault, String name, int unset) {
      int now = Integer.parseInt(fault.getOrDefault(name, "" + unset));
      fault.put(name, "" + Math.max(now - 1, 0));
      return now;
    }

    static String error(String message) {
      return "{\"error\":{\"message\":\"" + message + "\",\"type\":\"ServiceFailure\",\"code\":0}}";
    }

    static void answer(HttpServletResponse response, int status, String body) throws IOException {
      response.setStatus(status);
      response.setContentType("application/json");
      response.getOutputStream().print(body);
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
