// Rows gathered, and summed where equal indices point.
#include "backend_test.h"
#include "kernels/row_groups.h"

namespace motley::test {
namespace {

TEST(GroupRows, brings_equal_indices_together_in_order) {
  HostRowGroups groups;
  group_rows(std::vector<std::int32_t>{5, 2, 5, 0, 2, 5}, groups);
  EXPECT_EQ(groups.rows, (std::vector<std::int32_t>{0, 2, 5}));
  EXPECT_EQ(groups.starts, (std::vector<std::int32_t>{0, 1, 3, 6}));
  EXPECT_EQ(groups.sources, (std::vector<std::int32_t>{3, 1, 4, 0, 2, 5}));
  group_rows({}, groups);
  EXPECT_EQ(groups.rows, std::vector<std::int32_t>{});
  EXPECT_EQ(groups.starts, std::vector<std::int32_t>{0});
  EXPECT_EQ(groups.sources, std::vector<std::int32_t>{});
}

class RowsTest : public BackendTest {
 protected:
  Tensor ints(const std::vector<std::int32_t>& values) {
    return {*backend, values, {static_cast<std::int64_t>(values.size())}};
  }
};
MOTLEY_ON_EVERY_BACKEND(RowsTest);

TEST_P(RowsTest, gather_copies_rows) {
  const std::vector<std::int32_t> index{4, 0, 4, 2};
  for (const DType dtype : element_types(*backend)) {
    for (const std::int64_t width : {1, 33, 64, 2056}) {
      const Tensor x = typed(dtype, random_values(5 * width, 1), {5, width}), y = junk({4, width}, dtype);
      backend->gather_rows(x, ints(index), y);
      const auto from = x.floats(), got = y.floats();
      const auto w = static_cast<std::size_t>(width);
      for (std::size_t i = 0; i < got.size(); ++i)
        ASSERT_EQ(got[i], from[static_cast<std::size_t>(index[i / w]) * w + i % w]);
    }
  }
  backend->gather_rows(zeros({5, 3}), ints({}), zeros({0, 3}));
}

TEST_P(RowsTest, scatter_adds_all_sources_of_a_row_to_what_is_there) {
  // Few sources; two rows that have all, as those of a table of types; rows with many and rows with one.
  std::vector<std::vector<std::int32_t>> lists{{1, 6, 1, 0, 6, 6, 1}, {}, {}};
  for (std::uint32_t i = 0; i < 300; ++i) {
    const RandomKey key(1, Purpose::initialization, 9, 0);
    lists[1].push_back(static_cast<std::int32_t>(i % 97 > 40));
    lists[2].push_back(static_cast<std::int32_t>(random_u32(key, 0, i) % 4 > 0 ? i % 3 : 3 + i));
  }
  for (const DType from : element_types(*backend)) {
    for (const DType to : {DType::f32, from}) {
      for (const std::vector<std::int32_t>& index : lists) {
        for (const std::int64_t width : {1, 33, 130, 264}) {
          const auto sources_count = static_cast<std::int64_t>(index.size());
          const Tensor dy = typed(from, random_values(sources_count * width, 1), {sources_count, width});
          const Tensor x = typed(to, random_values(400 * width, 2), {400, width});
          const auto before = x.floats(), terms = dy.floats();
          std::vector<double> want(before.begin(), before.end());
          for (std::size_t i = 0; i < terms.size(); ++i) {
            const auto w = static_cast<std::size_t>(width);
            want[static_cast<std::size_t>(index[i / w]) * w + i % w] += static_cast<double>(terms[i]);
          }
          HostRowGroups host;
          group_rows(index, host);
          const Tensor rows = ints(host.rows), starts = ints(host.starts), sources = ints(host.sources);
          backend->scatter_add_rows({rows, starts, sources}, dy, x);
          expect_within(x.floats(), want, rounding(to), 1e-6);
        }
      }
    }
  }
}

TEST_P(RowsTest, rows_may_begin_anywhere) {
  for (const DType dtype : element_types(*backend)) {
    const Tensor x = typed(dtype, random_values(1 + 5 * 64, 1), {1 + 5 * 64}), y = junk({1 + 3 * 64}, dtype);
    const auto view = [&](const Tensor& t, std::int64_t rows) -> View {
      return {static_cast<std::byte*>(t.view().data) + size_of(dtype), dtype, Shape{rows, 64}};
    };
    backend->gather_rows(view(x, 5), ints({3, 1, 1}), view(y, 3));
    const auto from = x.floats();
    auto got = y.floats();
    for (std::size_t i = 0; i < 64; ++i) {
      ASSERT_EQ(got[1 + i], from[1 + 3 * 64 + i]);
      ASSERT_EQ(got[1 + 64 + i], from[1 + 64 + i]);
    }
    const Tensor sum = junk({1 + 2 * 64});
    backend->fill_zero(sum);
    const View rows = view_of(sum.view().as<float>() + 1, Shape{2, 64});
    backend->scatter_add_rows({ints({1}), ints({0, 3}), ints({0, 1, 2})}, view(y, 3), rows);
    const auto sums = sum.values();
    for (std::size_t i = 0; i < 64; ++i) {
      ASSERT_EQ(sums[1 + i], 0.0f);
      ASSERT_NEAR(sums[1 + 64 + i], from[1 + 3 * 64 + i] + 2 * from[1 + 64 + i], 1e-6);
    }
  }
}

TEST_P(RowsTest, a_long_group_is_summed_exactly_enough) {
  constexpr std::int64_t count = 20000;
  HostRowGroups host;
  group_rows(std::vector<std::int32_t>(count, 1), host);
  const Tensor rows = ints(host.rows), starts = ints(host.starts), sources = ints(host.sources);
  const Tensor dy = tensor(std::vector<float>(count, 0.1f), {count, 1}), x = zeros({2, 1});
  backend->scatter_add_rows({rows, starts, sources}, dy, x);
  EXPECT_EQ(x.values()[0], 0.0f);
  EXPECT_FLOAT_EQ(x.values()[1], 2000.0f);
}

TEST_P(RowsTest, an_embedding_is_the_sum_of_three_rows_rounded_once) {
  for (const std::int64_t width : {1, 33, 64, 1032}) {
    const Tensor word = random({9, width}, 1), position = random({4, width}, 2), type = random({2, width}, 3);
    const std::vector<std::int32_t> id{8, 0, 3, 3, 1, 7}, kind{0, 1, 1, 0, 0, 1};
    const Tensor ids(*backend, id, {2, 3}), types(*backend, kind, {2, 3});
    const auto w = word.values(), p = position.values(), t = type.values();
    std::vector<float> want;
    for (std::size_t token = 0; token < 6; ++token) {
      for (std::size_t c = 0; c < static_cast<std::size_t>(width); ++c) {
        const auto at = [&](const std::vector<float>& table, std::size_t row) {
          return table[row * static_cast<std::size_t>(width) + c];
        };
        want.push_back(at(w, static_cast<std::size_t>(id[token])) + at(p, token % 3) +
                       at(t, static_cast<std::size_t>(kind[token])));
      }
    }
    for (const DType dtype : element_types(*backend)) {
      const Tensor y = junk({2, 3, width}, dtype);
      backend->embedding_forward(word, position, type, ids, types, y);
      EXPECT_EQ(y.floats(), typed(dtype, want, y.shape()).floats()) << name_of(dtype) << " " << width;
    }
  }
}

TEST_P(RowsTest, wrong_arguments_are_refused_by_name) {
  const Tensor x = zeros({5, 3}), ids = Tensor(*backend, DType::i32, {2, 4});
  expect_refused([&] { backend->gather_rows(x, ints({1}), zeros({1, 4})); }, {"gather_rows", "y"});
  expect_refused(
      [&] {
        backend->embedding_forward(x, zeros({3, 3}), x, ids, ids, zeros({2, 4, 3}));
      },
      {"embedding_forward", "positions"});
  const Tensor one = ints({0}), two = ints({0, 1}), ends = ints({0, 1});
  expect_refused(
      [&] {
        backend->scatter_add_rows({one, ends, two}, zeros({1, 3}), x);
      },
      {"scatter_add_rows", "dy"});
  expect_refused(
      [&] {
        backend->scatter_add_rows({one, one, one}, zeros({1, 3}), x);
      },
      {"scatter_add_rows", "starts"});
}

}  // namespace
}  // namespace motley::test
