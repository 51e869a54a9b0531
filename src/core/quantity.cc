#include "core/quantity.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <span>

namespace motley {
namespace {

// Fractions are divided by how many make one, since 5e-3 and 5 * 1e-3 need not be the same double.
struct Unit {
  std::string_view suffix;
  double factor;
  double divisor = 1;
};

std::optional<double> parse(std::string_view text, std::span<const Unit> units,
                            std::chars_format format = std::chars_format::general) {
  double number = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, number, format);
  if (error != std::errc() || !std::isfinite(number) || number < 0) return std::nullopt;
  const std::string_view suffix(stop, static_cast<std::size_t>(end - stop));
  for (const Unit& unit : units) {
    const double value = number * unit.factor / unit.divisor;
    if (suffix == unit.suffix && std::isfinite(value)) return value;
  }
  return std::nullopt;
}

}  // namespace

std::optional<double> parse_bytes(std::string_view text) {
  static constexpr Unit units[] = {{"", 1}, {"K", 0x1p10}, {"M", 0x1p20}, {"G", 0x1p30}, {"T", 0x1p40}};
  const std::optional<double> bytes = parse(text, units, std::chars_format::fixed);
  const bool bare = text.find_first_not_of("0123456789.") == std::string_view::npos;
  if (bytes && bare && *bytes != std::floor(*bytes)) return std::nullopt;
  return bytes;
}

std::optional<double> parse_bytes_per_s(std::string_view text) {
  static constexpr Unit units[] = {{"", 1}, {"K", 1e3}, {"M", 1e6}, {"G", 1e9}, {"T", 1e12}};
  return parse(text, units);
}

std::optional<double> parse_seconds(std::string_view text) {
  static constexpr Unit units[] = {{"us", 1, 1e6}, {"ms", 1, 1e3}, {"s", 1}};
  return parse(text, units);
}

std::optional<double> parse_duration(std::string_view text) {
  struct Part {
    char unit;
    double seconds;
  };
  static constexpr Part parts[] = {{'d', 86400}, {'h', 3600}, {'m', 60}, {'s', 1}};
  constexpr std::uint64_t most = 1000000000;
  double sum = 0;
  const Part* next = std::begin(parts);
  if (text.empty()) return std::nullopt;
  while (!text.empty()) {
    std::uint64_t number = 0;
    const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    if (error != std::errc() || number > most) return std::nullopt;
    const bool alone = next == std::begin(parts) && stop == text.data() + text.size();
    const char unit = alone ? 's' : stop == text.data() + text.size() ? ' ' : *stop;
    next = std::find_if(next, std::end(parts), [&](const Part& part) { return part.unit == unit; });
    if (next == std::end(parts)) return std::nullopt;
    sum += static_cast<double>(number) * next->seconds;
    ++next;
    text.remove_prefix(static_cast<std::size_t>(stop - text.data()) + (alone ? 0 : 1));
  }
  return sum;
}

std::string seconds_text(double seconds) {
  const bool micro = seconds < 1e-3, milli = seconds < 1;
  const double number = seconds * (micro ? 1e6 : milli ? 1e3 : 1);
  const int decimals = number >= 99.95 || number == 0 ? 0 : number >= 9.995 ? 1 : 2;
  return fmt::format("{:.{}f} {}", number, decimals, micro ? "us" : milli ? "ms" : "s");
}

}  // namespace motley
