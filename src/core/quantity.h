// Numbers with a unit, as people write them in options.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace motley {

// Each gives nothing for whatever is not of its form, is negative or not finite.

// "4096", "64K", "1.5G": bytes; K, M, G and T are powers of 1024, and without one the number is whole.
std::optional<double> parse_bytes(std::string_view text);
// "10G", "1.25G": bytes per second; K, M, G and T are powers of 1000, as networks are sold.
std::optional<double> parse_bytes_per_s(std::string_view text);
// "5ms", "20us", "1.5s"; a unit is needed. The same doubles as 0.005, 0.00002 and 1.5.
std::optional<double> parse_seconds(std::string_view text);

// "11h50m", "90s", "1d12h", "45": seconds; units are d, h, m and s, the larger ones first, each once, and of whole numbers.
// A number alone is of seconds.
std::optional<double> parse_duration(std::string_view text);

// "87.1 ms", "1.25 s", "20 us": three digits that count.
std::string seconds_text(double seconds);

}  // namespace motley
