// Writes java.hlog with the Java library, or lists the contents of a log as the library reads it:
//
//   mvn dependency:get -Dartifact=org.hdrhistogram:HdrHistogram:2.2.2
//   java -cp HdrHistogram-2.2.2.jar HdrLogs.java write java.hlog
//   java -cp HdrHistogram-2.2.2.jar HdrLogs.java list FILE
//
// Each line of the list contains: tag, start and end in ms since the Unix epoch, number of values, maximum value, and
// the sum over all counts of count times highest equivalent value, modulo 2^64.

import java.io.FileInputStream;
import java.io.PrintStream;
import org.HdrHistogram.AbstractHistogram;
import org.HdrHistogram.Histogram;
import org.HdrHistogram.HistogramIterationValue;
import org.HdrHistogram.HistogramLogReader;
import org.HdrHistogram.HistogramLogWriter;

public class HdrLogs {
    public static void main(String[] arguments) throws Exception {
        if (arguments[0].equals("write")) {
            write(arguments[1]);
        } else {
            list(arguments[1]);
        }
    }

    static void write(String path) throws Exception {
        long began = 1_700_000_000_250L;
        HistogramLogWriter writer = new HistogramLogWriter(new PrintStream(path));
        writer.outputComment("written by the Java library");
        writer.outputLogFormatVersion();
        writer.outputStartTime(began);
        writer.outputBaseTime(began);
        writer.setBaseTime(began);
        writer.outputLegend();
        for (int index = 0; index < 4; index++) {
            // Three digits, auto-resizing; two digits with fixed bounds; five digits; empty.
            Histogram histogram = index == 1 ? new Histogram(1000, 60_000_000_000L, 2)
                : new Histogram(index == 2 ? 5 : 3);
            for (long number = 0; index < 3 && number < 300; number++) {
                histogram.recordValueWithCount(1000 + number * number * number * (index + 37), 1 + number % 5);
            }
            histogram.setStartTimeStamp(began + 1000 * index);
            histogram.setEndTimeStamp(began + 1000 * index + 1000);
            if (index == 2) {
                histogram.setTag("uncorrected");
            }
            writer.outputIntervalHistogram(histogram);
        }
        writer.close();
    }

    static void list(String path) throws Exception {
        HistogramLogReader reader = new HistogramLogReader(new FileInputStream(path));
        AbstractHistogram histogram;
        while ((histogram = (AbstractHistogram) reader.nextIntervalHistogram()) != null) {
            long sum = 0;
            for (HistogramIterationValue value : histogram.recordedValues()) {
                sum += value.getCountAtValueIteratedTo() * histogram.highestEquivalentValue(value.getValueIteratedTo());
            }
            System.out.println(histogram.getTag() + " " + histogram.getStartTimeStamp() + " " + histogram.getEndTimeStamp()
                + " " + histogram.getTotalCount() + " " + histogram.getMaxValue() + " " + sum);
        }
    }
}
