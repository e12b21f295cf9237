"""Reports of `anello load`, and the figures that `anello load merge` must print for them."""
import base64
import zlib


def decode(text):
    """Returns the number of values with each index, from a histogram in version 2 of the compressed encoding."""
    content = zlib.decompress(base64.b64decode(text)[8:])
    digits, lowest = int.from_bytes(content[12:16], "big"), int.from_bytes(content[16:24], "big")
    counts, index, position = {}, 0, 40
    while position < len(content):
        value, shift = 0, 0
        while True:
            byte = content[position]
            position += 1
            # The ninth byte has eight bits.
            value |= (byte if shift == 56 else byte & 0x7F) << shift
            shift += 7
            if byte < 0x80 or shift == 63:
                break
        value = (value >> 1) ^ -(value & 1)
        if value < 0:
            index -= value
        else:
            counts[index] = value
            index += 1
    return counts, digits, lowest


def quantiles(histograms):
    """Returns the quantiles of the sum of the histograms."""
    total, parameters = {}, set()
    for counts, *rest in map(decode, histograms):
        parameters.add(tuple(rest))
        for index, count in counts.items():
            total[index] = total.get(index, 0) + count
    ((digits, lowest),) = parameters
    half_bits = (2 * 10**digits - 1).bit_length() - 1
    unit = lowest.bit_length() - 1

    def highest_value(index):
        bucket, position = (index >> half_bits) - 1, (index & ((1 << half_bits) - 1)) + (1 << half_bits)
        if bucket < 0:
            bucket, position = 0, position - (1 << half_bits)
        return ((position + 1) << (bucket + unit)) - 1

    sizes, samples = sorted(total.items()), sum(total.values())
    result = {"samples": samples}
    for name, per_mille in (("p50_ns", 500), ("p90_ns", 900), ("p99_ns", 990), ("p999_ns", 999)):
        rank, seen = max(1, -(-samples * per_mille // 1000)), 0
        for index, count in sizes:
            seen += count
            if seen >= rank:
                result[name] = highest_value(index)
                break
    return result


def count_errors(errors):
    return sum(error["count"] for error in errors)


def merge_problems(merged, reports):
    """Compares the merged figures with those of the sum of all histograms, which are decoded here."""
    expected = quantiles([report["histograms"]["latency"] for report in reports])
    (total,) = (tag for tag in merged["tags"] if tag["tag"] is None)
    actual = {"samples": total["requests"], **total["latency"]}
    problems = [f"merged {name}: {actual[name]}, expected {value}" for name, value in expected.items()
                if actual[name] != value]
    requests = sum(report["requests"] for report in reports)
    if expected["samples"] != requests:
        problems.append(f"the histograms contain {expected['samples']} of {requests} requests")
    return problems
