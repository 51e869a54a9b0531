// Stretches of the CUDA backend: graphs that give what the operations give, and what happens when there is none.
#include <cuda_runtime_api.h>

#include "backend_test.h"
#include "device.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/gpu_driver.h"

namespace motley::test {
namespace {

class CudaGraphsTest : public testing::TestWithParam<std::uint64_t> {
 protected:
  CudaGraphsTest() { sim::set_order(GetParam()); }
  void TearDown() override { sim::set_fault(""); }

  static std::unique_ptr<Backend> open(bool graphs = true) {
    return cuda::gpu_driver().open(0, {.deterministic = true, .graphs = graphs});
  }

  // A small pass: dropout of inputs that come from the host, a layer, its gradients, which are added up.
  struct Network {
    explicit Network(Backend& on)
        : backend(on),
          x(on, DType::f32, {rows, 24}),
          dropped(on, DType::f32, {rows, 24}),
          weight(on, random_values(40 * 24, 2), {40, 24}),
          bias(on, random_values(40, 3), {40}),
          y(on, DType::f32, {rows, 40}),
          dx(on, DType::f32, {rows, 24}),
          dweight(on, DType::f32, {40, 24}),
          dbias(on, DType::f32, {40}) {}

    void pass(std::uint32_t step) const {
      const auto values = random_values(rows * 24, 10 + step);
      backend.copy_to_device(x.view().data, values.data(), values.size() * sizeof(float));
      compute(step);
    }
    void compute(std::uint32_t step) const {
      backend.dropout({RandomKey(7, Purpose::dropout, step, 0), 3 * step, 0.25}, x, dropped);
      backend.linear_forward(dropped, weight, bias, Activation::gelu, y, {});
      backend.linear_backward_data(y, weight, dx, false);
      backend.linear_backward_weights(dropped, y, dweight, dbias, true);
    }
    std::vector<std::vector<float>> results() const {
      return {y.values(), dx.values(), dweight.values(), dbias.values()};
    }

    static constexpr std::int64_t rows = 37;
    Backend& backend;
    Tensor x, dropped, weight, bias, y, dx, dweight, dbias;
  };

  // What so many passes give without graphs.
  static std::vector<std::vector<float>> expected(std::uint32_t passes) {
    const auto backend = open(false);
    const Network network(*backend);
    for (std::uint32_t step = 0; step < passes; ++step) network.pass(step);
    return network.results();
  }

  static cudaStreamCaptureStatus status(Backend& backend) {
    cudaStreamCaptureStatus status{};
    EXPECT_EQ(cudaStreamIsCapturing(dynamic_cast<CudaBackend&>(backend).stream(), &status), cudaSuccess);
    return status;
  }
  static void run(Backend& backend, const std::function<void()>& work) {
    backend.run_stretch({Network::rows, 0}, work, work);
  }
};

INSTANTIATE_TEST_SUITE_P(, CudaGraphsTest, testing::Values(0, 1, 2, 3),
                         [](const auto& order) { return "order_" + std::to_string(order.param); });

TEST_P(CudaGraphsTest, results_have_the_bits_of_those_without_and_follow_their_arguments) {
  const auto backend = open();
  const Network network(*backend);
  for (std::uint32_t step = 0; step < 6; ++step) run(*backend, [&] { network.pass(step); });
  EXPECT_EQ(network.results(), expected(6));
}

TEST_P(CudaGraphsTest, the_first_pass_is_run_as_it_is_the_second_is_rehearsed_all_others_are_graphs) {
  const auto backend = open();
  const Network network(*backend);
  std::vector<std::string> seen;
  const std::size_t before = sim::live_objects();
  for (std::uint32_t step = 0; step < 4; ++step) {
    const auto pass = [&](const char* what) {
      network.pass(step);
      seen.push_back(std::string(what) +
                     (status(*backend) == cudaStreamCaptureStatusActive ? " captured" : ""));
    };
    backend->run_stretch(
        {1, 2}, [&] { pass("run"); }, [&] { pass("rehearsed"); });
    EXPECT_EQ(status(*backend), cudaStreamCaptureStatusNone);
  }
  EXPECT_EQ(seen, (std::vector<std::string>{"run", "rehearsed captured", "run captured", "run captured",
                                            "run captured"}));
  // Working memory and its plans came with the first pass; and one executable graph is kept.
  EXPECT_EQ(network.results(), expected(4));
  const std::size_t kept = sim::live_objects() - before;
  for (std::uint32_t step = 4; step < 8; ++step)
    backend->run_stretch(
        {1, 2}, [&] { network.pass(step); }, [&] { FAIL() << "rehearsed again"; });
  EXPECT_EQ(sim::live_objects() - before, kept);
  backend->release_scratch();  // then everything begins anew
  backend->run_stretch(
      {1, 2}, [&] { EXPECT_EQ(status(*backend), cudaStreamCaptureStatusNone); }, [] {});
}

TEST_P(CudaGraphsTest, what_needs_the_stream_outside_finds_all_that_came_before) {
  const auto backend = open();
  auto& cuda = dynamic_cast<CudaBackend&>(*backend);
  const Network network(*backend);
  const std::vector<std::function<void()>> needs = {
      [&] { backend->synchronize(); },
      [&] {
        std::vector<float> y(network.y.shape().elements());
        backend->copy_to_host(y.data(), network.y.view().data, network.y.view().bytes());
        EXPECT_NE(y, std::vector<float>(y.size(), 0.0f));
      },
      [&] {
        const std::vector<float> junk(24, 12345.0f);  // the pass has read its input before
        backend->copy_to_device(network.x.view().data, junk.data(), junk.size() * sizeof(float));
      },
      [&] { backend->mark(); },
      [&] { const Buffer taken(*backend, 1000); },
      [&] {
        cudaEvent_t event = nullptr;
        ASSERT_EQ(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), cudaSuccess);
        EXPECT_EQ(cudaEventRecord(event, cuda.outer_stream()), cudaSuccess);
        EXPECT_EQ(cudaEventSynchronize(event), cudaSuccess);
        EXPECT_EQ(cudaEventDestroy(event), cudaSuccess);
      },
  };
  for (std::uint32_t step = 0; step < 5; ++step) {
    run(*backend, [&] {
      network.pass(step);
      for (const auto& need : needs) {
        need();
        backend->scale(1, network.y);  // the stretch goes on
      }
    });
  }
  EXPECT_EQ(network.results(), expected(5));
}

TEST_P(CudaGraphsTest, passes_that_differ_in_more_than_arguments_get_graphs_of_their_own) {
  const auto backend = open();
  const Tensor x(*backend, std::vector<float>(64, 1.0f), {64});
  float want = 1;
  std::size_t before = 0;
  for (int pass = 0; pass < 40; ++pass) {
    if (pass == 2) before = sim::live_objects();
    const int nodes = 1 + pass % 7;
    run(*backend, [&] {
      // As many nodes, but of other kinds, every second time.
      if (pass % 2 == 1) {
        backend->fill_zero(x);
      } else {
        backend->scale(2, x);
      }
      for (int i = 1; i < nodes; ++i) backend->add(x, x, Activation::none, x);
    });
    want = (pass % 2 == 1 ? 0 : 2 * want) * static_cast<float>(1 << (nodes - 1));
    if (pass % 2 == 1) {
      const std::vector<float> one(64, 1.0f);
      backend->copy_to_device(x.view().data, one.data(), x.view().bytes());
      want = 1;
    }
    ASSERT_EQ(x.values(), std::vector<float>(64, want)) << pass;
    if (pass >= 2) {
      EXPECT_LE(sim::live_objects(), before + 4);
    }
  }
}

TEST_P(CudaGraphsTest, all_is_given_back) {
  const std::size_t before = sim::live_objects();
  {
    const auto backend = open();
    const Network network(*backend);
    for (std::int64_t key = 0; key < 30; ++key)
      for (std::uint32_t step = 0; step < 3; ++step)
        backend->run_stretch(
            {key, 0}, [&] { network.pass(step); }, [&] { network.pass(step); });
  }
  EXPECT_EQ(sim::live_objects(), before);
}

// --- When there is no graph ---------------------------------------------------------------------------------

struct Passes {
  std::string warnings;
  int lost = 0;
};

// The fault is of the calls from the second pass on. A pass that was lost is made again.
Passes passes_with(Backend& backend, const std::string& fault,
                   const std::function<void(std::uint32_t)>& pass) {
  Passes result;
  testing::internal::CaptureStderr();
  for (std::uint32_t step = 0; step < 6; ++step) {
    if (step == 1 && !fault.empty()) sim::set_fault("0:" + fault);
    try {
      backend.run_stretch(
          {1, 0}, [&] { pass(step); }, [&] { pass(step); });
    } catch (const StretchLost& lost) {
      EXPECT_EQ(lost.code(), ExitCode::device);
      ++result.lost;
      backend.run_stretch(
          {1, 0}, [&] { pass(step); }, [&] { pass(step); });
    }
  }
  result.warnings = testing::internal::GetCapturedStderr();
  return result;
}

// Refused in the rehearsal (the first call), or in the pass after it.
TEST_P(CudaGraphsTest, captures_that_are_refused_cost_a_warning_and_nothing_else) {
  for (const std::string fault :
       {"cudaStreamBeginCapture:1:801", "cudaStreamBeginCapture:2:900", "cudaStreamEndCapture:1:901",
        "cudaStreamEndCapture:2:901", "cudaGraphInstantiate:1:2", "cudaGraphInstantiate:2:2",
        "cudaGraphGetNodes:2:1", "cudaGraphLaunch:1:801", "cudaGraphExecUpdate:2:801",
        "cudaLaunchKernel:9:906"}) {
    SCOPED_TRACE(fault);
    const auto backend = open();
    const Network network(*backend);
    std::vector<float> dweight(network.dweight.shape().elements()), dbias(network.dbias.shape().elements());
    const auto pass = [&](std::uint32_t step) {
      // What a pass adds to is set at its beginning, so that it can be made again.
      backend->copy_to_device(network.dweight.view().data, dweight.data(), network.dweight.view().bytes());
      backend->copy_to_device(network.dbias.view().data, dbias.data(), network.dbias.view().bytes());
      network.pass(step);
    };
    const Passes passes = passes_with(*backend, fault, pass);
    EXPECT_LE(passes.lost, 1);
    const std::string call =
        fault.starts_with("cudaLaunchKernel") ? "failed" : fault.substr(0, fault.find(':'));
    for (const std::string& word :
         {std::string("CUDA graphs are left out"), std::string("host "), std::string("Simulated GPU"), call})
      EXPECT_NE(passes.warnings.find(word), std::string::npos) << word << "\n" << passes.warnings;
    EXPECT_EQ(passes.warnings.find("left out"), passes.warnings.rfind("left out")) << "once";
    sim::set_fault("");
    const auto alone = open(false);
    const Network other(*alone);
    other.pass(5);
    EXPECT_EQ(network.results(), other.results());
  }
}

TEST_P(CudaGraphsTest, updates_that_are_refused_make_a_new_graph_without_a_word) {
  const auto backend = open();
  const Network network(*backend);
  const auto pass = [&](std::uint32_t step) { network.pass(step); };
  const Passes passes = passes_with(*backend, "cudaGraphExecUpdate:2:910", pass);
  EXPECT_EQ(passes.lost, 0);
  EXPECT_EQ(passes.warnings, "");
  EXPECT_EQ(network.results(), expected(6));
}

// A library that waits for the stream in the middle of what is captured.
TEST_P(CudaGraphsTest, a_library_that_spoils_a_capture_is_survived) {
  for (const bool in_rehearsal : {true, false}) {
    const auto backend = open();
    auto& cuda = dynamic_cast<CudaBackend&>(*backend);
    const Network network(*backend);
    bool spoils = false;
    const auto pass = [&](std::uint32_t step) {
      backend->fill_zero(network.dweight);
      backend->fill_zero(network.dbias);
      network.pass(step);
      if (spoils) cudaStreamSynchronize(cuda.stream());
      backend->scale(1, network.y);
    };
    testing::internal::CaptureStderr();
    int lost = 0;
    for (std::uint32_t step = 0; step < 5; ++step) {
      spoils = step == (in_rehearsal ? 1 : 2);
      try {
        backend->run_stretch(
            {1, 0}, [&] { pass(step); }, [&] { pass(step); });
      } catch (const StretchLost&) {
        ++lost;
        backend->run_stretch(
            {1, 0}, [&] { pass(step); }, [&] { pass(step); });
      }
    }
    const std::string warnings = testing::internal::GetCapturedStderr();
    EXPECT_EQ(lost, in_rehearsal ? 0 : 1);
    EXPECT_NE(warnings.find("left out"), std::string::npos) << warnings;
    const auto alone = open(false);
    const Network other(*alone);
    other.pass(4);
    EXPECT_EQ(network.results(), other.results());
  }
}

TEST_P(CudaGraphsTest, errors_of_the_device_keep_their_sentence) {
  for (const std::string call : {"cudaStreamBeginCapture", "cudaStreamEndCapture", "cudaGraphInstantiate",
                                 "cudaGraphExecUpdate", "cudaGraphLaunch", "cudaGraphGetNodes"}) {
    SCOPED_TRACE(call);
    {
      const auto backend = open();
      const Network network(*backend);
      try {
        passes_with(*backend, call + ":2:719", [&](std::uint32_t step) { network.pass(step); });
        ADD_FAILURE() << "nothing was thrown";
      } catch (const StretchLost&) {
        ADD_FAILURE() << "as if it could go on";
      } catch (const Error& error) {
        EXPECT_NE(std::string(error.what()).find(call + " failed on GPU 0"), std::string::npos)
            << error.what();
      }
      testing::internal::GetCapturedStderr();
    }
    sim::set_fault("");
  }
}

TEST_P(CudaGraphsTest, memory_that_ends_inside_leaves_the_stream_and_the_graphs_usable) {
  const auto backend = open();
  const Network network(*backend);
  const std::size_t limit = backend->device().memory_limit_bytes;
  for (std::uint32_t step = 0; step < 6; ++step) {
    const auto pass = [&] { network.pass(step); };
    if (step == 1 || step == 3) {
      // In the rehearsal, and in a pass.
      backend->set_memory_limit(backend->allocated_bytes());
      EXPECT_THROW(run(*backend,
                       [&] {
                         backend->scale(1, network.y);
                         const Buffer more(*backend, 1000);
                       }),
                   OutOfMemory);
      backend->set_memory_limit(limit);
      EXPECT_EQ(status(*backend), cudaStreamCaptureStatusNone);
    }
    run(*backend, pass);
  }
  EXPECT_EQ(network.results(), expected(6));
}

// Memory that operations give back while they are captured is not given away before they have run.
TEST_P(CudaGraphsTest, buffers_may_end_inside) {
  const auto backend = open();
  const Tensor x(*backend, std::vector<float>(64, 1.0f), {64});
  for (int pass = 0; pass < 4; ++pass) {
    run(*backend, [&] {
      const Tensor copy(*backend, DType::f32, {64});
      backend->add(x, x, Activation::none, copy);
      backend->add(copy, copy, Activation::none, x);
    });
  }
  EXPECT_EQ(x.values(), std::vector<float>(64, 256.0f));
}

}  // namespace
}  // namespace motley::test
