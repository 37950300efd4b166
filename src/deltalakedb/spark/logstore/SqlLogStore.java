package io.deltalakedb;

import io.delta.storage.CloseableIterator;
import io.delta.storage.LogStore;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.InputStream;
import java.io.InterruptedIOException;
import java.io.OutputStream;
import java.net.HttpURLConnection;
import java.net.URL;
import java.net.URLEncoder;
import java.nio.file.FileAlreadyExistsException;
import java.nio.file.Files;
import java.nio.file.Paths;
import java.util.ArrayList;
import java.util.Iterator;
import java.util.List;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.Path;
import org.apache.spark.TaskContext;

/**
 * Lets a service ratify and publish the commits of a catalog's tables. Everything else, and every table that is not
 * the catalog's, goes the way that Delta itself would take. Whatever is not clearly answered is an error, never a yes.
 */
public class SqlLogStore extends LogStore {
    private static final String SERVICE = "deltalakedb.service";
    private static final String TOKEN_FILE = "deltalakedb.service.token.file";
    private static final String PATIENCE = "deltalakedb.service.patience.seconds";
    private static final String KNOWN = "fs.deltalakedb.published";
    private static final String WORK_FOLDER = "_deltasql";
    private static final String FETCHED = "deltasql-fetched-[a-z0-9_]{8}";
    private static final String FIRST = "00000000000000000000.json";
    private static final String HEADER = "Deltasql-Answer";

    private final String service;
    private final String tokenFile;
    private final long patience;

    public SqlLogStore(Configuration conf) {
        super(conf);
        service = conf.get(SERVICE);
        tokenFile = conf.get(TOKEN_FILE);
        patience = conf.getLong(PATIENCE, 30L) * 1000L;
    }

    public void write(Path path, Iterator<String> actions, Boolean overwrite, Configuration conf) throws IOException {
        if (overwrite.booleanValue() || !isLog(path) || !path.getName().matches("[0-9]{20}\\.json")) {
            plain(path).write(path, actions, overwrite, conf);
            return;
        }
        List<String> lines = new ArrayList<String>();
        ByteArrayOutputStream body = new ByteArrayOutputStream();
        while (actions.hasNext()) {
            String line = (String) actions.next();
            lines.add(line);
            body.write(line.getBytes("UTF-8"));
            body.write('\n');
        }
        String[] answer = ask("commit", path, body.toByteArray());
        String word = answer[0];
        if (word.equals("taken")) throw new FileAlreadyExistsException(path.toString());
        if (word.equals("elsewhere")) {
            plain(path).write(path, lines.iterator(), overwrite, conf);
        } else if (!word.equals("committed")) {
            if (word.equals("refused") && path.getName().equals(FIRST)) forget(path, conf);
            throw new IOException("The commit " + path.getName() + " of " + table(path) + " did not go through: " + answer[1]);
        }
    }

    public Iterator<FileStatus> listFrom(Path path, Configuration conf) throws IOException {
        // executors list too, for VACUUM and histories: the driver has asked before them;
        // a read of this library has found in the database that its version is published
        if (isLog(path) && TaskContext.get() == null && !conf.getBoolean(KNOWN, false)) {
            String[] answer = ask("publish", path, new byte[0]);
            if (!answer[0].equals("published") && !answer[0].equals("elsewhere")) {
                throw new IOException("The log of " + table(path) + " may lack its newest versions: " + answer[1]);
            }
        }
        return plain(path).listFrom(path, conf);
    }

    public CloseableIterator<String> read(Path path, Configuration conf) throws IOException {
        return plain(path).read(path, conf);
    }

    public Path resolvePathOnPhysicalStorage(Path path, Configuration conf) throws IOException {
        return plain(path).resolvePathOnPhysicalStorage(path, conf);
    }

    public Boolean isPartialWriteVisible(Path path, Configuration conf) throws IOException {
        return plain(path).isPartialWriteVisible(path, conf);
    }

    /** Empty folders of a log that never was: Delta would take all that lies beside them for parts of a table. */
    private static void forget(Path path, Configuration conf) {
        try {
            path.getFileSystem(conf).delete(new Path(path.getParent(), "_staged_commits"), false);
            path.getFileSystem(conf).delete(path.getParent(), false);
        } catch (IOException e) {
            return;  // not empty: somebody else's
        }
    }

    /** What Delta takes for a scheme by itself. */
    private LogStore plain(Path path) {
        String scheme = String.valueOf(path.toUri().getScheme()).toLowerCase();
        Configuration conf = initHadoopConf();
        if (scheme.startsWith("s3")) return new io.delta.storage.S3SingleDriverLogStore(conf);
        if (scheme.equals("gs")) return new io.delta.storage.GCSLogStore(conf);
        if (scheme.startsWith("abfs") || scheme.startsWith("wasb") || scheme.equals("adl")) {
            return new io.delta.storage.AzureLogStore(conf);
        }
        return new io.delta.storage.HDFSLogStore(conf);
    }

    /** Whether a file is in a log that a catalog may have: scratch tables of this library are not its tables. */
    private static boolean isLog(Path path) {
        if (path.getParent() == null || !path.getParent().getName().equals("_delta_log")) return false;
        Path table = table(path);
        if (table == null || table.getParent() == null) return true;
        return !table.getParent().getName().equals(WORK_FOLDER) && !table.getName().matches(FETCHED);
    }

    private static Path table(Path path) {
        return path.getParent().getParent();
    }

    /** Asks until there is an answer: both questions may be asked again, a commit is known by its version and bytes. */
    private String[] ask(String what, Path path, byte[] body) throws IOException {
        if (service == null) {
            throw new IOException("Spark has Delta's log store of deltalakedb and no service for it: set spark.hadoop."
                + SERVICE + ", or build the session with deltalakedb.spark.configure");
        }
        String query = "?path=" + URLEncoder.encode(path.toUri().toString(), "UTF-8");
        URL url = new URL((service.endsWith("/") ? service : service + "/") + what + query);
        String token = token();
        long end = System.currentTimeMillis() + patience;
        long pause = 50L;
        boolean sent = false;
        String trouble;
        while (true) {
            try {
                String[] answer = once(url, token, body);
                if (answer[0] != null && !answer[0].equals("later") && !answer[0].equals("failed")) return answer;
                if (answer[0] == null) {
                    throw new IOException("What answers at " + service + " is not a service of deltalakedb: check spark.hadoop." + SERVICE);
                }
                trouble = answer[1];
                sent = true;
            } catch (java.net.ConnectException e) {
                trouble = away(e);
            } catch (java.net.UnknownHostException e) {
                trouble = away(e);
            } catch (java.net.SocketException e) {
                trouble = away(e);
                sent = true;
            } catch (java.io.InterruptedIOException e) {
                if (Thread.currentThread().isInterrupted()) throw e;
                trouble = away(e);
                sent = true;
            } catch (java.io.EOFException e) {
                trouble = away(e);
                sent = true;
            }
            if (System.currentTimeMillis() + pause > end) break;
            try {
                Thread.sleep(pause);
            } catch (InterruptedException e) {
                Thread.currentThread().interrupt();
                throw new InterruptedIOException("interrupted while " + service + " was asked about " + path);
            }
            pause = Math.min(2 * pause, 2000L);
        }
        String unknown = sent && what.equals("commit")
            ? "; whether " + path.getName() + " of " + table(path) + " was committed is not known: look before it is written again" : "";
        throw new IOException(trouble + unknown);
    }

    private String away(Exception e) {
        return "The commit service at " + service + " does not answer (" + e.getMessage()
            + "): start it with `deltasql serve --commits`, or check spark.hadoop." + SERVICE;
    }

    /** The word and the text of one answer; no word where it is not one of ours. */
    private static String[] once(URL url, String token, byte[] body) throws IOException {
        HttpURLConnection call = (HttpURLConnection) url.openConnection();
        call.setRequestMethod("POST");
        call.setRequestProperty("Authorization", "Bearer " + token);
        call.setRequestProperty("Content-Type", "application/json");
        call.setInstanceFollowRedirects(false);
        call.setUseCaches(false);
        call.setConnectTimeout(10000);
        call.setReadTimeout(300000);
        call.setDoOutput(true);
        call.setFixedLengthStreamingMode(body.length);
        OutputStream out = call.getOutputStream();
        out.write(body);
        out.close();
        int status = call.getResponseCode();
        InputStream in = status < 400 ? call.getInputStream() : call.getErrorStream();
        ByteArrayOutputStream text = new ByteArrayOutputStream();
        if (in != null) {
            byte[] piece = new byte[8192];
            int count = in.read(piece);
            while (count >= 0) {
                if (text.size() < 65536) text.write(piece, 0, count);
                count = in.read(piece);
            }
            in.close();
        }
        String said = text.toString("UTF-8").trim();
        // Java keeps this answer's text to itself
        if (status == 401 && said.isEmpty()) said = "the token is missing or wrong: Spark and the service must have the same one";
        return new String[] {call.getHeaderField(HEADER), said};
    }

    /** From a file, or the environment: settings of Spark are seen in its pages and in lists of processes. */
    private String token() throws IOException {
        if (tokenFile != null) return new String(Files.readAllBytes(Paths.get(tokenFile, new String[0])), "UTF-8").trim();
        String found = System.getenv("DELTASQL_SERVICE__TOKEN");
        if (found != null) return found.trim();
        throw new IOException("No token for the commit service is named: set spark.hadoop." + TOKEN_FILE
            + ", or DELTASQL_SERVICE__TOKEN in the driver's environment");
    }
}
