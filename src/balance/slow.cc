#include "balance/slow.h"

#include <charconv>
#include <cmath>
#include <cstddef>
#include <numbers>
#include <optional>
#include <string_view>
#include <system_error>

#include "core/error.h"
#include "core/philox.h"
#include "core/quantity.h"

namespace motley::balance {
namespace {

// --- Random delays ----------------------------------------------------------------------------------------

// The random numbers of one delay, one after the other.
class Draws {
 public:
  Draws(const RandomKey& key, int rank) : key_(key), slot_(static_cast<std::uint32_t>(rank)) {}

  // In [0, 1), with 53 random bits.
  double uniform() {
    const std::uint64_t high = random_u32(key_, slot_, element_), low = random_u32(key_, slot_, element_ + 1);
    element_ += 2;
    return static_cast<double>((high << 32 | low) >> 11) * 0x1p-53;
  }

  // By the inverse of the distribution function; mean 1.
  double exponential() { return -std::log1p(-uniform()); }

  // Box and Muller, "A note on the generation of random normal deviates", Ann. Math. Stat. 29, 1958.
  double normal() {
    const double radius = std::sqrt(2 * exponential());
    return radius * std::cos(2 * std::numbers::pi * uniform());
  }

  // Marsaglia and Tsang, "A simple method for generating gamma variables", ACM TOMS 26, 2000: the cube of a
  // shifted normal variable, accepted at least 95 times in 100; scale 1. For shapes below 1, as they advise,
  // a variable of shape + 1 times U^(1 / shape).
  double gamma(double shape) {
    if (shape < 1) {
      const double boost = std::pow(1 - uniform(), 1 / shape);
      return gamma(shape + 1) * boost;
    }
    const double d = shape - 1.0 / 3, c = 1 / std::sqrt(9 * d);
    while (true) {
      const double x = normal(), root = 1 + c * x, v = root * root * root;
      const double u = 1 - uniform();
      if (root > 0 && std::log(u) < 0.5 * x * x + d * (1 - v + std::log(v))) return d * v;
    }
  }

 private:
  RandomKey key_;
  std::uint32_t slot_, element_ = 0;
};

bool holds(const Slowness& part, std::int64_t step) {
  return part.first_step <= step && step <= part.last_step;
}

double mean_of(const Slowness& part) {
  if (part.kind == Slowness::Kind::factor) return 0;
  return part.kind == Slowness::Kind::gamma ? part.shape * part.scale_s : part.scale_s;
}

double draw_of(const Slowness& part, Draws draws) {
  if (part.kind == Slowness::Kind::gamma) return part.scale_s * draws.gamma(part.shape);
  if (part.kind == Slowness::Kind::exponential) return part.scale_s * draws.exponential();
  return mean_of(part);
}

// --- Parsing ----------------------------------------------------------------------------------------------

// One RANK:SPEC of the list, and the whole list, which every sentence shows.
struct Item {
  std::string_view item;
  const std::string& text;

  [[noreturn]] void refuse_form() const {
    fail(ExitCode::usage,
         "--slow {}: \"{}\" has none of the forms RANK:3x, RANK:+100ms, RANK:gamma(2,50ms) and "
         "RANK:exp(80ms), each for some steps only with @200-400 or @200- at its end; the units of time are "
         "us, ms and s",
         text, item);
  }
  [[noreturn]] void refuse_size(const std::string& expected) const {
    fail(ExitCode::usage, "--slow {}: \"{}\" is too much; expected {}", text, item, expected);
  }
};

// Beyond these, times overflow or nobody lives to see the step.
constexpr double largest_factor = 1e6, longest_delay_s = 86400, largest_shape = 1e6;

std::optional<double> parse_number(std::string_view text) {
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc{} || end != text.data() + text.size() || !std::isfinite(number)) return {};
  return number;
}

std::optional<std::int64_t> parse_step(std::string_view text) {
  std::int64_t step = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), step);
  if (error != std::errc{} || end != text.data() + text.size()) return {};
  return step;
}

// "50ms" in seconds.
double parse_delay(std::string_view text, const Item& item) {
  const bool negative = text.starts_with("-");
  const std::optional<double> delay_s = parse_seconds(text.substr(negative ? 1 : 0));
  if (!delay_s) item.refuse_form();
  if (negative && *delay_s > 0) {
    fail(ExitCode::usage, "--slow {}: \"{}\" has a negative delay; the least is 0", item.text, item.item);
  }
  if (*delay_s > longest_delay_s) item.refuse_size("delays of at most a day");
  return *delay_s;
}

// What stands between "NAME(" and ")", if that is the form.
std::optional<std::string_view> arguments_of(std::string_view spec, std::string_view name) {
  if (!spec.starts_with(name) || !spec.ends_with(")")) return {};
  spec.remove_prefix(name.size());
  if (!spec.starts_with("(")) return {};
  return spec.substr(1, spec.size() - 2);
}

// "3x", "+100ms", "gamma(2,50ms)" or "exp(80ms)"
Slowness parse_kind(std::string_view spec, const Item& item) {
  Slowness part;
  if (spec.ends_with("x")) {
    const std::optional<double> factor = parse_number(spec.substr(0, spec.size() - 1));
    if (!factor) item.refuse_form();
    if (*factor < 1) {
      fail(ExitCode::usage, "--slow {}: \"{}\" would make its rank faster; the least factor is 1", item.text,
           item.item);
    }
    if (*factor > largest_factor) item.refuse_size(fmt::format("a factor of at most {}", largest_factor));
    part.factor = *factor;
  } else if (spec.starts_with("+") || spec.starts_with("-")) {
    part.kind = Slowness::Kind::constant;
    part.scale_s = parse_delay(spec.substr(spec.starts_with("+") ? 1 : 0), item);
  } else if (const auto mean = arguments_of(spec, "exp")) {
    part.kind = Slowness::Kind::exponential;
    part.scale_s = parse_delay(*mean, item);
  } else if (const auto arguments = arguments_of(spec, "gamma")) {
    part.kind = Slowness::Kind::gamma;
    const std::size_t comma = arguments->find(',');
    if (comma == std::string_view::npos) item.refuse_form();
    const std::optional<double> shape = parse_number(arguments->substr(0, comma));
    if (!shape) item.refuse_form();
    if (*shape <= 0) {
      fail(ExitCode::usage, "--slow {}: the shape in \"{}\" is {}; it must be more than 0", item.text,
           item.item, *shape);
    }
    if (*shape > largest_shape) item.refuse_size(fmt::format("a shape of at most {}", largest_shape));
    part.shape = *shape;
    part.scale_s = parse_delay(arguments->substr(comma + 1), item);
  } else {
    item.refuse_form();
  }
  return part;
}

// "200-400" or "200-"
void parse_steps(std::string_view steps, const Item& item, Slowness& part) {
  const std::size_t dash = steps.find('-', 1);
  if (dash == std::string_view::npos) item.refuse_form();
  const std::optional<std::int64_t> first = parse_step(steps.substr(0, dash));
  if (!first) item.refuse_form();
  if (*first < 1) {
    fail(ExitCode::usage, "--slow {}: \"{}\" begins at step {}; steps count from 1", item.text, item.item,
         *first);
  }
  part.first_step = *first;
  if (dash + 1 == steps.size()) return;
  const std::optional<std::int64_t> last = parse_step(steps.substr(dash + 1));
  if (!last) item.refuse_form();
  if (*last < *first) {
    fail(ExitCode::usage, "--slow {}: \"{}\" ends before it begins: step {} comes before step {}", item.text,
         item.item, *last, *first);
  }
  part.last_step = *last;
}

int parse_rank(std::string_view text, const Item& item, int ranks) {
  int rank = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), rank);
  if (error == std::errc::invalid_argument || end != text.data() + text.size()) item.refuse_form();
  if (error == std::errc::result_out_of_range || rank < 0 || rank >= ranks) {
    fail(ExitCode::usage,
         "--slow {}: \"{}\" names a rank that does not exist; the ranks of this run are 0 to {}", item.text,
         item.item, ranks - 1);
  }
  return rank;
}

void parse_item(const Item& item, int ranks, std::vector<SlowSpec>& specs) {
  const std::size_t colon = item.item.find(':');
  if (colon == std::string_view::npos) item.refuse_form();
  const std::string_view behind = item.item.substr(colon + 1);
  const std::size_t at = behind.find('@');
  Slowness part = parse_kind(behind.substr(0, at), item);
  if (at != std::string_view::npos) parse_steps(behind.substr(at + 1), item, part);
  const int rank = parse_rank(item.item.substr(0, colon), item, ranks);
  specs[static_cast<std::size_t>(rank)].parts.push_back(part);
}

// Where the first item of the list ends: at a comma that is not inside parentheses.
std::size_t end_of_item(std::string_view list) {
  int depth = 0;
  for (std::size_t i = 0; i < list.size(); ++i) {
    if (list[i] == '(') ++depth;
    if (list[i] == ')') --depth;
    if (list[i] == ',' && depth <= 0) return i;
  }
  return list.size();
}

}  // namespace

double SlowSpec::factor(std::int64_t step) const {
  double product = 1;
  for (const Slowness& part : parts) {
    if (part.kind == Slowness::Kind::factor && holds(part, step)) product *= part.factor;
  }
  return product;
}

double SlowSpec::delay_s(std::int64_t step, int rank, std::uint64_t seed) const {
  double sum = 0;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (!holds(parts[i], step)) continue;
    const RandomKey key(seed, Purpose::delay, static_cast<std::uint32_t>(i),
                        static_cast<std::uint32_t>(step));
    sum += draw_of(parts[i], Draws(key, rank));
  }
  return sum;
}

double SlowSpec::mean_delay_s(std::int64_t step) const {
  double sum = 0;
  for (const Slowness& part : parts) {
    if (holds(part, step)) sum += mean_of(part);
  }
  return sum;
}

std::vector<SlowSpec> parse_slow(const std::string& text, int ranks) {
  std::vector<SlowSpec> specs(static_cast<std::size_t>(ranks));
  std::string_view rest = text;
  for (bool more = !text.empty(); more;) {
    const std::size_t end = end_of_item(rest);
    parse_item({rest.substr(0, end), text}, ranks, specs);
    more = end < rest.size();
    if (more) rest.remove_prefix(end + 1);
  }
  return specs;
}

}  // namespace motley::balance
