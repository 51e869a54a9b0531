// Operations of image networks that are bound by memory, at the sizes of CIFAR's: average pools, channels, sums.
#include "kernel_bench.h"

namespace motley::bench {
namespace {

constexpr std::int64_t checked_rows = 2;

// Every sample by itself: out = operation(in), the first dimension of each being the sample.
struct BySample {
  std::vector<Shape> in, out;
  std::function<void(Backend& on, const std::vector<ConstView>& in, const std::vector<View>& out)> run;
  double bytes_more = 0;  // than each of them once
};

Shape rows_shape(const Shape& shape, std::int64_t rows) {
  return shape.without_batch().with_batch(rows);
}

void measure(Bench& bench, const std::string& name, DType type, const BySample& what) {
  const std::int64_t n = what.in[0][0];
  double elements = 0;
  for (const auto* shapes : {&what.in, &what.out})
    for (const Shape& shape : *shapes) elements += static_cast<double>(shape.elements());
  const double bytes = elements * static_cast<double>(size_of(type)) + what.bytes_more;
  struct Set {
    std::vector<ConstView> in;
    std::vector<View> out;
  };
  Tensors tensors(bench.backend());
  const auto sets = make_sets(bench, bytes, [&] {
    Set set;
    for (const Shape& shape : what.in) set.in.push_back(tensors.random(shape, type));
    for (const Shape& shape : what.out) set.out.push_back(tensors.poisoned(shape, type));
    return set;
  });
  bench.measure(
      {name, type, what.in[0].to_string(), bytes},
      [&](std::size_t i) {
        const Set& set = sets[i % sets.size()];
        what.run(bench.backend(), set.in, set.out);
      },
      [&] {
        RelativeError error;
        for (const std::int64_t first : both_ends(n, checked_rows)) {
          std::vector<Host> in, want;
          for (const ConstView& x : sets[0].in)
            in.emplace_back(bench.backend(), rows_of(x, first, checked_rows));
          for (const Shape& shape : what.out) want.emplace_back(rows_shape(shape, checked_rows));
          std::vector<ConstView> in_views(in.begin(), in.end());
          std::vector<View> out_views(want.begin(), want.end());
          what.run(bench.reference(), in_views, out_views);
          for (std::size_t i = 0; i < want.size(); ++i) {
            error.add(Host(bench.backend(), rows_of(sets[0].out[i], first, checked_rows)).values,
                      want[i].values);
          }
        }
        return error.value();
      });
}

std::int64_t samples(const Bench& bench) {
  return bench.pick(1024, 128, 3);
}

void avg_pool2d(Bench& bench, DType type) {
  const std::int64_t n = samples(bench);
  const Shape large{n, 32, 32, 64}, small{n, 16, 16, 64};
  measure(bench, "avg_pool2d_forward", type,
          {{large}, {small}, [](Backend& on, const auto& in, const auto& out) {
             on.avg_pool2d_forward({}, in[0], out[0]);
           }});
  measure(bench, "avg_pool2d_backward", type,
          {{small}, {large}, [](Backend& on, const auto& in, const auto& out) {
             on.avg_pool2d_backward({}, in[0], out[0]);
           }});
}

void global_average_pool(Bench& bench, DType type) {
  const std::int64_t n = samples(bench);
  static constexpr Pool2d whole{8, 8, 1, 1, 0, 0};
  const Shape image{n, 8, 8, 512}, pooled{n, 1, 1, 512};
  measure(bench, "global_average_pool_forward", type,
          {{image}, {pooled}, [](Backend& on, const auto& in, const auto& out) {
             on.avg_pool2d_forward(whole, in[0], out[0]);
           }});
  measure(bench, "global_average_pool_backward", type,
          {{pooled}, {image}, [](Backend& on, const auto& in, const auto& out) {
             on.avg_pool2d_backward(whole, in[0], out[0]);
           }});
}

void copy_channels(Bench& bench, DType type) {
  const std::int64_t n = samples(bench);
  const Shape whole{n, 16, 16, 256}, half{n, 16, 16, 128};
  measure(bench, "copy_channels (concatenation)", type,
          {{half, half}, {whole}, [](Backend& on, const auto& in, const auto& out) {
             on.copy_channels(in[0], 0, out[0], 0, 128);
             on.copy_channels(in[1], 0, out[0], 128, 128);
           }});
  // The result is written and then added to, so that it does not depend on how often that was done.
  const double more = static_cast<double>(half.elements()) * static_cast<double>(size_of(type));
  measure(bench, "copy_channels (split, and added)", type,
          {{half, whole},
           {half},
           [](Backend& on, const auto& in, const auto& out) {
             on.copy_channels(in[0], 0, out[0], 0, 128);
             on.copy_channels(in[1], 128, out[0], 0, 128, true);
           },
           more});
}

void channel_shuffle(Bench& bench, DType type) {
  const Shape shape{samples(bench), 16, 16, 240};
  for (const std::int64_t groups : {2, 3}) {
    measure(bench, fmt::format("channel_shuffle {}", groups), type,
            {{shape}, {shape}, [groups](Backend& on, const auto& in, const auto& out) {
               on.channel_shuffle(groups, in[0], out[0]);
             }});
  }
}

void scale_channels(Bench& bench, DType type) {
  const std::int64_t n = samples(bench);
  const Shape image{n, 16, 16, 128}, factors{n, 128};
  measure(bench, "scale_channels_forward", type,
          {{image, factors}, {image}, [](Backend& on, const auto& in, const auto& out) {
             on.scale_channels_forward(in[0], in[1], out[0]);
           }});
  measure(bench, "scale_channels_backward", type,
          {{image, factors, image}, {image, factors}, [](Backend& on, const auto& in, const auto& out) {
             on.scale_channels_backward(in[0], in[1], in[2], out[0], out[1]);
           }});
}

void add(Bench& bench, DType type) {
  const Shape shape{samples(bench), 32, 32, 64};
  measure(bench, "add", type, {{shape, shape}, {shape}, [](Backend& on, const auto& in, const auto& out) {
                                 on.add(in[0], in[1], Activation::relu, out[0]);
                               }});
}

void activation_forward(Bench& bench, DType type) {
  const Shape shape{samples(bench), 32, 32, 64};
  measure(bench, "activation_forward", type,
          {{shape}, {shape}, [](Backend& on, const auto& in, const auto& out) {
             on.activation_forward(Activation::swish, in[0], out[0]);
           }});
}

}  // namespace

std::vector<Case> channel_cases() {
  return {{"avg_pool2d", avg_pool2d, true},
          {"global_average_pool", global_average_pool, true},
          {"copy_channels", copy_channels, true},
          {"channel_shuffle", channel_shuffle, true},
          {"scale_channels", scale_channels, true},
          {"add", add, true},
          {"activation_forward", activation_forward, true}};
}

}  // namespace motley::bench
