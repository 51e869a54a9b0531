#include "backend_test.h"

namespace motley::test {
namespace {

const RandomKey key(0x123456789abcULL, Purpose::dropout, 3, 17);

class DropoutTest : public BackendTest {};
MOTLEY_ON_EVERY_BACKEND(DropoutTest);

TEST_P(DropoutTest, drops_by_the_counted_random_number_of_slot_and_element) {
  for (const Shape& s : {Shape{3, 1}, Shape{5, 7}, Shape{2, 65}, Shape{3, 4, 67}, Shape{2, 9001}}) {
    for (const double p : {0.0, 0.25, 0.5, 0.9}) {
      const Tensor x = random(s, 1), y = junk(s);
      backend->dropout({key, 1000, p}, x, y);
      const auto xv = x.values(), got = y.values();
      const auto row = static_cast<std::size_t>(s.elements_from(1));
      for (std::size_t i = 0; i < got.size(); ++i) {
        const auto slot = static_cast<std::uint32_t>(1000 + i / row);
        const bool dropped = random_u32(key, slot, static_cast<std::uint32_t>(i % row)) < drop_threshold(p);
        ASSERT_EQ(got[i], dropped ? 0.0f : xv[i] * static_cast<float>(1 / (1 - p)))
            << s.to_string() << " " << i;
      }
      backend->dropout({key, 1000, p}, x, x);
      EXPECT_EQ(x.values(), got) << "in place";
    }
  }
}

TEST_P(DropoutTest, is_rounded_once_in_every_type_and_wherever_views_begin) {
  for (const DType dtype : element_types(*backend)) {
    for (const Shape& s : {Shape{3, 64}, Shape{2, 3, 44}, Shape{700, 8}, Shape{40, 33}, Shape{2, 4104}}) {
      for (const std::size_t shift : {0, 1}) {  // in elements
        const auto values = random_values(s.elements(), 1);
        std::vector<float> padded(shift, 0.0f);
        padded.insert(padded.end(), values.begin(), values.end());
        const Shape flat{static_cast<std::int64_t>(padded.size())};
        const Tensor x = typed(dtype, padded, flat), y = junk(flat, dtype);
        const auto view = [&](const Tensor& t) -> View {
          return {static_cast<std::byte*>(t.view().data) + shift * size_of(dtype), dtype, s};
        };
        backend->dropout({key, 5, 0.25}, view(x), view(y));
        auto want = x.floats();
        const auto row = static_cast<std::size_t>(s.elements_from(1));
        for (std::size_t i = 0; i < values.size(); ++i) {
          const auto slot = static_cast<std::uint32_t>(5 + i / row);
          const bool dropped =
              random_u32(key, slot, static_cast<std::uint32_t>(i % row)) < drop_threshold(0.25);
          want[shift + i] = dropped ? 0.0f : want[shift + i] * static_cast<float>(1 / 0.75);
        }
        if (shift > 0) want[0] = 12345.0f;
        EXPECT_EQ(y.floats(), typed(dtype, want, flat).floats()) << name_of(dtype) << s.to_string();
      }
    }
  }
}

TEST_P(DropoutTest, whole_channels_are_dropped_by_slot_and_channel) {
  for (const DType dtype : element_types(*backend)) {
    for (const Shape& s : {Shape{3, 2, 2, 1}, Shape{4, 3, 5, 17}, Shape{2, 2, 3, 130}, Shape{3, 9, 7, 20},
                           Shape{2, 3, 3, 24}, Shape{1, 2, 2, 1040}, Shape{1, 2, 1, 259}}) {
      SCOPED_TRACE(std::string(name_of(dtype)) + s.to_string());
      const Tensor x = typed(dtype, random_values(s.elements(), 1), s), y = junk(s, dtype);
      backend->dropout_channels({key, 7, 0.25}, x, y);
      auto want = x.floats();
      for (std::size_t i = 0; i < want.size(); ++i) {
        const auto slot = static_cast<std::uint32_t>(7 + static_cast<std::int64_t>(i) / s.elements_from(1));
        const auto channel = static_cast<std::uint32_t>(static_cast<std::int64_t>(i) % s[3]);
        const bool dropped = random_u32(key, slot, channel) < drop_threshold(0.25);
        want[i] = dropped ? 0.0f : want[i] * static_cast<float>(1 / 0.75);
      }
      const auto rounded = typed(dtype, want, s).floats();
      EXPECT_EQ(y.floats(), rounded);
      backend->dropout_channels({key, 7, 0.25}, x, x);
      EXPECT_EQ(x.floats(), rounded) << "in place";
    }
  }
}

TEST_P(DropoutTest, does_not_depend_on_how_rows_are_split_into_calls) {
  const Shape all{11, 3, 2, 21};
  const std::int64_t row = all.elements_from(1);
  const Tensor x = random(all, 1);
  for (const bool channels : {false, true}) {
    const auto apply = [&](std::uint32_t first_slot, ConstView from, View to) {
      const DropoutMask mask{key, first_slot, 0.5};
      channels ? backend->dropout_channels(mask, from, to) : backend->dropout(mask, from, to);
    };
    const Tensor whole = junk(all), parts = junk(all);
    apply(40, x, whole);
    for (const auto& [begin, count] : {std::pair(0, 4), std::pair(4, 1), std::pair(5, 6)}) {
      const Shape shape{count, all[1], all[2], all[3]};
      apply(40u + static_cast<std::uint32_t>(begin),
            view_of(static_cast<const float*>(x.view().data) + begin * row, shape),
            view_of(static_cast<float*>(parts.view().data) + begin * row, shape));
    }
    EXPECT_EQ(parts.values(), whole.values());
  }
}

TEST_P(DropoutTest, keeps_the_fraction_that_it_should) {
  constexpr std::int64_t rows = 50, elements = 4000;
  const Tensor x = tensor(std::vector<float>(rows * elements, 1.0f), {rows, elements}),
               y = junk({rows, elements});
  backend->dropout({key, 0, 0.1}, x, y);
  double kept = 0, sum = 0;
  for (const float value : y.values()) kept += value != 0, sum += static_cast<double>(value);
  const double deviation = std::sqrt(rows * elements * 0.1 * 0.9);
  EXPECT_NEAR(kept, 0.9 * rows * elements, 5 * deviation);
  EXPECT_NEAR(sum, rows * elements, 5 * deviation / 0.9);
}

TEST_P(DropoutTest, wrong_arguments_are_refused_by_name) {
  const Tensor x = zeros({2, 3}), y = zeros({3, 2});
  expect_refused([&] { backend->dropout({key, 0, 0.5}, x, y); }, {"dropout", "[3, 2]"});
  expect_refused([&] { backend->dropout({key, 0, 1.0}, x, x); }, {"dropout", "probability"});
  expect_refused([&] { backend->dropout({key, 0, -0.1}, x, x); }, {"dropout", "probability"});
  expect_refused([&] { backend->dropout({key, 0, std::nan("")}, x, x); }, {"dropout", "probability"});
  expect_refused(
      [&] {
        backend->dropout_channels({key, 0, 0.5}, x, x);
      },
      {"dropout_channels", "4 dimensions"});
}

}  // namespace
}  // namespace motley::test
