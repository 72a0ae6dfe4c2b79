// A c10d backend over Intel's oneCCL: torch.distributed's collectives for CPU tensors.
//
// Every collective is three steps: lay the tensors out in contiguous buffers, let oneCCL work on these, copy back where
// the tensor was not contiguous itself. What oneCCL lacks is composed: a gather and a scatter are an all-to-all in
// which most ranks send nothing, an average is a sum that is divided, a barrier is an all-reduce of one number.
#include "engine.hpp"

#include <pybind11/chrono.h>
#include <torch/csrc/utils/pybind.h>

namespace accelerando {

using c10d::OpType;
using c10d::ReduceOp;
using Tensors = std::vector<at::Tensor>;

namespace {

constexpr const char* kOperations = "oneCCL can do SUM, AVG, MIN, MAX and PRODUCT";

void check_tensor(const at::Tensor& tensor) {
  TORCH_CHECK_VALUE(
      tensor.device().is_cpu(), "the ccl backend works on CPU tensors, but was given one on ", tensor.device());
  TORCH_CHECK_VALUE(
      tensor.layout() == at::kStrided, "the ccl backend works on dense tensors: make it dense with .to_dense()");
}

const at::Tensor& only(const Tensors& tensors) {
  TORCH_CHECK_VALUE(tensors.size() == 1, "one tensor per rank is expected, not ", tensors.size());
  check_tensor(tensors[0]);
  return tensors[0];
}

size_t bytes(const at::Tensor& tensor) { return tensor.numel() * tensor.element_size(); }

bool do_overlap(const at::Tensor& a, const at::Tensor& b) {
  auto* first = static_cast<const char*>(a.const_data_ptr());
  auto* second = static_cast<const char*>(b.const_data_ptr());
  return first < second + bytes(b) && second < first + bytes(a);
}

// One contiguous buffer with the elements of all tensors, one after the other.
at::Tensor joined(const Tensors& tensors) {
  if (tensors.size() == 1) return tensors[0].contiguous().view(-1);
  Tensors flat;
  for (const auto& tensor : tensors) flat.push_back(tensor.reshape(-1));
  return at::cat(flat);
}

void copy_out(const at::Tensor& buffer, const Tensors& tensors) {
  int64_t begin = 0;
  for (const auto& tensor : tensors) {
    auto part = buffer.narrow(0, begin, tensor.numel());
    begin += tensor.numel();
    if (part.const_data_ptr() != tensor.const_data_ptr() || !tensor.is_contiguous())
      const_cast<at::Tensor&>(tensor).copy_(part.view(tensor.sizes()));
  }
}

// What the options of all collectives have in common.
struct Call {
  milliseconds timeout = c10d::kUnsetTimeout;
  bool is_async = true;

  Call() = default;
  template <typename Options>
  Call(const Options& options) : timeout(options.timeout), is_async(options.asyncOp) {}
};

struct Reduction {
  ccl::datatype type;
  ccl::reduction operation;
  int64_t components;  // numbers per element: 2 for complex
};

Reduction reduction_of(const at::Tensor& tensor, const ReduceOp& wanted) {
  ReduceOp::RedOpType op = wanted;
  ccl::reduction operation;
  switch (op) {
    case ReduceOp::SUM: case ReduceOp::AVG: operation = ccl::reduction::sum; break;
    case ReduceOp::PRODUCT: operation = ccl::reduction::prod; break;
    case ReduceOp::MIN: operation = ccl::reduction::min; break;
    case ReduceOp::MAX: operation = ccl::reduction::max; break;
    case ReduceOp::BAND: TORCH_CHECK_VALUE(false, kOperations, ", not BAND; gloo can");
    case ReduceOp::BOR: TORCH_CHECK_VALUE(false, kOperations, ", not BOR; gloo can");
    case ReduceOp::BXOR: TORCH_CHECK_VALUE(false, kOperations, ", not BXOR; gloo can");
    default: TORCH_CHECK_VALUE(false, kOperations, ", not PREMUL_SUM: multiply before you reduce");
  }
  switch (tensor.scalar_type()) {
    case at::kChar: return {ccl::datatype::int8, operation, 1};
    case at::kByte: return {ccl::datatype::uint8, operation, 1};
    case at::kShort: return {ccl::datatype::int16, operation, 1};
    case at::kInt: return {ccl::datatype::int32, operation, 1};
    case at::kLong: return {ccl::datatype::int64, operation, 1};
    case at::kHalf: return {ccl::datatype::float16, operation, 1};
    case at::kBFloat16: return {ccl::datatype::bfloat16, operation, 1};
    case at::kFloat: return {ccl::datatype::float32, operation, 1};
    case at::kDouble: return {ccl::datatype::float64, operation, 1};
    case at::kBool:
      TORCH_CHECK_VALUE(op != ReduceOp::AVG, "truth values have no average: convert them to numbers first");
      // 0 and 1: a sum is true if any is, a product if all are.
      return {ccl::datatype::uint8,
              operation == ccl::reduction::sum || operation == ccl::reduction::max ? ccl::reduction::max
                                                                                   : ccl::reduction::min, 1};
    case at::kComplexFloat: case at::kComplexDouble:
      TORCH_CHECK_VALUE(operation == ccl::reduction::sum, "complex numbers can be summed and averaged only");
      return {tensor.scalar_type() == at::kComplexFloat ? ccl::datatype::float32 : ccl::datatype::float64, operation, 2};
    default:
      TORCH_CHECK_VALUE(false, "oneCCL cannot reduce tensors of type ", tensor.scalar_type(),
                        ": convert to float32, float64, bfloat16, float16 or an integer type first");
  }
}

void divide(const at::Tensor& sum, const ReduceOp& op, int size) {
  if (op != ReduceOp::AVG) return;
  auto& values = const_cast<at::Tensor&>(sum);
  if (at::isIntegralType(sum.scalar_type(), false)) {
    values.div_(size, "trunc");
  } else {
    values.div_(size);
  }
}

}  // namespace

class OneCCLBackend : public c10d::Backend {
 public:
  OneCCLBackend(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size, milliseconds timeout)
      : Backend(rank, size), group_(std::make_shared<Group>()) {
    group_->rank = rank;
    group_->size = size;
    group_->timeout = timeout;
    meet(*store);
    init();
  }

  ~OneCCLBackend() override { shutdown(); }

  const std::string getBackendName() const override { return "ccl"; }
  void setSequenceNumberForGroup() override {}
  uint64_t getSequenceNumberForGroup() override { return sequence_; }

  // oneCCL takes a communicator down together with all other ranks and waits for them without a limit, with the library
  // locked. So it stays until the process ends: a rank that leaves waits for nobody.
  void shutdown() override {
    if (!group_->comm) return;
    Engine::get().drain(group_->broken.empty() ? milliseconds(200) : milliseconds(0));
    try {
      Engine::get().enter(milliseconds(200), [&] {
        if (group_->broken.empty()) group_->broken = "it was destroyed";
      });
    } catch (const std::exception&) {
      // something is stuck in the library, so nothing will be asked of this group either
    }
    (void)group_->comm.release();
    new std::shared_ptr<ccl::kvs>(group_->kvs);
  }

  c10::intrusive_ptr<c10d::Work> broadcast(Tensors& tensors, const c10d::BroadcastOptions& opts) override {
    auto tensor = only(tensors);
    auto buffer = joined({tensor});
    auto work = make(OpType::BROADCAST, {tensor}, opts, {buffer});
    auto root = checked_rank(opts.rootRank, "source");
    if (root != rank_) work->after = [=] { copy_out(buffer, {tensor}); };
    return submit(work, bytes(buffer), [=](OneCCLWork& w) {
      w.events.push_back(ccl::broadcast(buffer.data_ptr(), bytes(buffer), ccl::datatype::uint8, root, comm()));
    });
  }

  c10::intrusive_ptr<c10d::Work> allreduce(Tensors& tensors, const c10d::AllreduceOptions& opts) override {
    only(tensors);
    return allreduce_joined(OpType::ALLREDUCE, tensors, opts);
  }

  c10::intrusive_ptr<c10d::Work> allreduce_coalesced(
      Tensors& tensors, const c10d::AllreduceCoalescedOptions& opts) override {
    TORCH_CHECK_VALUE(!tensors.empty(), "no tensors were given");
    for (const auto& tensor : tensors) {
      check_tensor(tensor);
      TORCH_CHECK_VALUE(tensor.scalar_type() == tensors[0].scalar_type(), "tensors of one call must be of one type");
    }
    return allreduce_joined(OpType::ALLREDUCE_COALESCED, tensors, opts);
  }

  c10::intrusive_ptr<c10d::Work> reduce(Tensors& tensors, const c10d::ReduceOptions& opts) override {
    auto tensor = only(tensors);
    auto kind = reduction_of(tensor, opts.reduceOp);
    auto root = checked_rank(opts.rootRank, "destination");
    auto input = joined({tensor});
    auto output = root == rank_ ? input : at::empty_like(input);
    auto work = make(OpType::REDUCE, {tensor}, opts, {input, output});
    if (root == rank_)
      work->after = [=, op = opts.reduceOp, size = size_] {
        divide(output, op, size);
        copy_out(output, {tensor});
      };
    return submit(work, bytes(input), [=](OneCCLWork& w) {
      w.events.push_back(ccl::reduce(input.data_ptr(), output.data_ptr(), input.numel() * kind.components, kind.type,
                                     kind.operation, root, comm()));
    });
  }

  c10::intrusive_ptr<c10d::Work> allgather(
      std::vector<Tensors>& outputs, Tensors& inputs, const c10d::AllgatherOptions& opts) override {
    only(inputs);
    return allgather_coalesced(outputs, inputs, opts);
  }

  c10::intrusive_ptr<c10d::Work> allgather_coalesced(
      std::vector<Tensors>& outputs, Tensors& inputs, const c10d::AllgatherOptions& opts) override {
    // torch calls this one with a list per rank, and `allgather` with a list per input: the same for one input
    std::vector<Tensors> lists = outputs;
    if (inputs.size() != 1 && outputs.size() == static_cast<size_t>(size_) && outputs[0].size() == inputs.size()) {
      lists.assign(inputs.size(), {});
      for (const auto& of_rank : outputs)
        for (size_t i = 0; i < inputs.size(); ++i) lists[i].push_back(of_rank[i]);
    }
    TORCH_CHECK_VALUE(lists.size() == inputs.size(), "one list of outputs per input is expected");
    Tensors all, kept;
    std::vector<std::function<void(OneCCLWork&)>> calls;
    std::vector<std::function<void()>> after;
    for (size_t i = 0; i < inputs.size(); ++i) {
      auto list = lists[i];
      check_list(list, inputs[i], "output");
      auto input = joined({inputs[i]});
      TORCH_CHECK_VALUE(list[rank_].numel() == input.numel(), "output ", rank_, " has ", list[rank_].numel(),
                        " elements, but this rank gives ", input.numel());
      std::vector<size_t> counts;
      int64_t total = 0;
      for (const auto& tensor : list) {
        counts.push_back(bytes(tensor));
        total += tensor.numel();
      }
      auto output = at::empty({total}, input.options());
      kept.insert(kept.end(), {input, output});
      all.insert(all.end(), list.begin(), list.end());
      if (total == 0) continue;
      after.emplace_back([=] { copy_out(output, list); });
      calls.emplace_back([=](OneCCLWork& w) {
        w.events.push_back(ccl::allgatherv(
            input.data_ptr(), bytes(input), output.data_ptr(), counts, ccl::datatype::uint8, comm()));
      });
    }
    return submit_all(make(OpType::ALLGATHER, all, opts, kept), calls, after);
  }

  c10::intrusive_ptr<c10d::Work> _allgather_base(
      at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& opts) override {
    Tensors outputs{output}, inputs{input};
    return allgather_into_tensor_coalesced(outputs, inputs, opts);
  }

  c10::intrusive_ptr<c10d::Work> allgather_into_tensor_coalesced(
      Tensors& outputs, Tensors& inputs, const c10d::AllgatherOptions& opts) override {
    TORCH_CHECK_VALUE(outputs.size() == inputs.size(), "as many outputs as inputs are expected");
    Tensors kept;
    std::vector<std::function<void(OneCCLWork&)>> calls;
    std::vector<std::function<void()>> after;
    for (size_t i = 0; i < inputs.size(); ++i) {
      check_pair(inputs[i], outputs[i], size_, 1);
      auto target = outputs[i];
      auto output = joined({target});
      auto input = joined({inputs[i]});
      if (do_overlap(input, output)) input = input.clone();
      kept.insert(kept.end(), {input, output});
      if (input.numel() == 0) continue;
      after.emplace_back([=] { copy_out(output, {target}); });
      calls.emplace_back([=](OneCCLWork& w) {
        w.events.push_back(
            ccl::allgather(input.data_ptr(), output.data_ptr(), bytes(input), ccl::datatype::uint8, comm()));
      });
    }
    return submit_all(make(OpType::_ALLGATHER_BASE, outputs, opts, kept), calls, after);
  }

  c10::intrusive_ptr<c10d::Work> reduce_scatter(
      Tensors& outputs, std::vector<Tensors>& inputs, const c10d::ReduceScatterOptions& opts) override {
    auto output = only(outputs);
    TORCH_CHECK_VALUE(inputs.size() == 1, "one list of inputs is expected");
    check_list(inputs[0], output, "input");
    for (const auto& tensor : inputs[0])
      TORCH_CHECK_VALUE(tensor.numel() == output.numel(), "all inputs must be as large as the output");
    auto joined_inputs = joined(inputs[0]);
    Tensors out{output}, in{joined_inputs};
    return reduce_scatter_tensor_coalesced(out, in, opts);
  }

  c10::intrusive_ptr<c10d::Work> _reduce_scatter_base(
      at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions& opts) override {
    Tensors outputs{output}, inputs{input};
    return reduce_scatter_tensor_coalesced(outputs, inputs, opts);
  }

  c10::intrusive_ptr<c10d::Work> reduce_scatter_tensor_coalesced(
      Tensors& outputs, Tensors& inputs, const c10d::ReduceScatterOptions& opts) override {
    TORCH_CHECK_VALUE(outputs.size() == inputs.size(), "as many outputs as inputs are expected");
    Tensors kept;
    std::vector<std::function<void(OneCCLWork&)>> calls;
    std::vector<std::function<void()>> after;
    for (size_t i = 0; i < inputs.size(); ++i) {
      check_pair(inputs[i], outputs[i], 1, size_);
      auto kind = reduction_of(inputs[i], opts.reduceOp);
      auto input = joined({inputs[i]});
      auto target = outputs[i];
      auto output = joined({target});
      if (do_overlap(input, output)) output = output.clone();
      kept.insert(kept.end(), {input, output});
      if (output.numel() == 0) continue;
      after.emplace_back([=, op = opts.reduceOp, size = size_] {
        divide(output, op, size);
        copy_out(output, {target});
      });
      calls.emplace_back([=](OneCCLWork& w) {
        w.events.push_back(ccl::reduce_scatter(input.data_ptr(), output.data_ptr(), output.numel() * kind.components,
                                               kind.type, kind.operation, comm()));
      });
    }
    return submit_all(make(OpType::_REDUCE_SCATTER_BASE, outputs, opts, kept), calls, after);
  }

  c10::intrusive_ptr<c10d::Work> alltoall_base(
      at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_splits, std::vector<int64_t>& input_splits,
      const c10d::AllToAllOptions& opts) override {
    check_tensor(output);
    check_tensor(input);
    TORCH_CHECK_VALUE(output.scalar_type() == input.scalar_type(), "input and output must be of one type");
    auto sent = split_bytes(input, input_splits, "input");
    auto received = split_bytes(output, output_splits, "output");
    return exchange(OpType::ALLTOALL_BASE, joined({input}), sent, joined({output}), received, {output}, opts);
  }

  c10::intrusive_ptr<c10d::Work> alltoall(
      Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& opts) override {
    check_list(outputs, inputs.empty() ? at::Tensor() : inputs[0], "output");
    check_list(inputs, outputs[0], "input");
    return exchange_lists(OpType::ALLTOALL, inputs, outputs, opts);
  }

  c10::intrusive_ptr<c10d::Work> gather(
      std::vector<Tensors>& outputs, Tensors& inputs, const c10d::GatherOptions& opts) override {
    auto input = only(inputs);
    auto root = checked_rank(opts.rootRank, "destination");
    auto nothing = at::empty({0}, input.options());
    Tensors sent(size_, nothing), received(size_, nothing);
    sent[root] = input;
    if (root == rank_) {
      TORCH_CHECK_VALUE(outputs.size() == 1, "the destination needs one list of outputs");
      check_list(outputs[0], input, "output");
      received = outputs[0];
    } else {
      TORCH_CHECK_VALUE(outputs.empty(), "only the destination may have outputs");
    }
    return exchange_lists(OpType::GATHER, sent, received, opts);
  }

  c10::intrusive_ptr<c10d::Work> scatter(
      Tensors& outputs, std::vector<Tensors>& inputs, const c10d::ScatterOptions& opts) override {
    auto output = only(outputs);
    auto root = checked_rank(opts.rootRank, "source");
    auto nothing = at::empty({0}, output.options());
    Tensors sent(size_, nothing), received(size_, nothing);
    received[root] = output;
    if (root == rank_) {
      TORCH_CHECK_VALUE(inputs.size() == 1, "the source needs one list of inputs");
      check_list(inputs[0], output, "input");
      sent = inputs[0];
    } else {
      TORCH_CHECK_VALUE(inputs.empty(), "only the source may have inputs");
    }
    return exchange_lists(OpType::SCATTER, sent, received, opts);
  }

  c10::intrusive_ptr<c10d::Work> send(Tensors& tensors, int destination, int tag) override {
    auto tensor = only(tensors);
    check_other(destination, tag);
    auto buffer = joined({tensor});
    return submit(make(OpType::SEND, {tensor}, Call{}, {buffer}), bytes(buffer), [=](OneCCLWork& w) {
      w.events.push_back(ccl::send(buffer.data_ptr(), bytes(buffer), ccl::datatype::uint8, destination, comm()));
    });
  }

  c10::intrusive_ptr<c10d::Work> recv(Tensors& tensors, int source, int tag) override {
    auto tensor = only(tensors);
    check_other(source, tag);
    auto buffer = joined({tensor});
    auto work = make(OpType::RECV, {tensor}, Call{}, {buffer});
    work->after = [=] { copy_out(buffer, {tensor}); };
    return submit(work, bytes(buffer), [=](OneCCLWork& w) {
      w.events.push_back(ccl::recv(buffer.data_ptr(), bytes(buffer), ccl::datatype::uint8, source, comm()));
    });
  }

  c10::intrusive_ptr<c10d::Work> recvAnysource(Tensors&, int) override {
    TORCH_CHECK_VALUE(false, "oneCCL receives from a named rank only: give recv() its src");
  }

  c10::intrusive_ptr<c10d::Work> barrier(const c10d::BarrierOptions& opts) override {
    auto one = at::ones({1}, at::kInt);
    return submit(make(OpType::BARRIER, {}, opts, {one}), bytes(one), [=](OneCCLWork& w) {
      w.events.push_back(ccl::allreduce(
          one.data_ptr(), one.data_ptr(), 1, ccl::datatype::int32, ccl::reduction::sum, comm()));
    });
  }

 private:
  // Find the other ranks through the store, then make oneCCL's communicator, within the time limit.
  void meet(c10d::Store& store) {
    auto deadline = Clock::now() + group_->timeout;
    auto& engine = Engine::get();
    engine.drain(group_->timeout);
    auto own = Process::own();
    auto text = own.place + "\n" + std::to_string(own.pid) + "\n" + own.started;
    if (rank_ == 0) {
      engine.enter(group_->timeout, [&] {
        Quiet quiet;
        ccl::init();
        group_->kvs = ccl::create_main_kvs();
      });
      auto address = group_->kvs->get_address();
      store.set("kvs", std::vector<uint8_t>(address.begin(), address.end()));
    }
    store.set("rank" + std::to_string(rank_), std::vector<uint8_t>(text.begin(), text.end()));
    for (int r = 0; r < size_; ++r) {
      auto left = std::chrono::duration_cast<milliseconds>(deadline - Clock::now());
      auto key = "rank" + std::to_string(r);
      store.wait({key}, std::max(left, milliseconds(1)));
      auto value = store.get(key);
      std::istringstream lines(std::string(value.begin(), value.end()));
      Process peer;
      std::string pid;
      std::getline(lines, peer.place);
      std::getline(lines, pid);
      std::getline(lines, peer.started);
      peer.pid = std::stol(pid);
      group_->peers.push_back(peer);
    }
    ccl::kvs::address_type address{};
    if (rank_ != 0) {
      auto value = store.get("kvs");
      std::copy_n(value.begin(), std::min(value.size(), address.size()), address.begin());
    }
    connect(address, deadline);
  }

  // oneCCL waits here without a limit, so a thread does it, which is left behind if it does not come back.
  void connect(const ccl::kvs::address_type& address, Clock::time_point deadline) {
    struct Attempt {
      std::mutex mutex;
      std::condition_variable done;
      bool is_done = false;
      std::string error;
    };
    auto attempt = std::make_shared<Attempt>();
    std::thread([attempt, group = group_, address] {
      std::string error;
      try {
        Engine::get().enter(group->timeout, [&] {
          Quiet quiet;
          ccl::init();
          if (!group->kvs) group->kvs = ccl::create_kvs(address);
          group->comm = std::make_unique<ccl::communicator>(ccl::create_communicator(group->size, group->rank, group->kvs));
        });
      } catch (const std::exception& problem) {
        error = problem.what();
      }
      std::lock_guard<std::mutex> lock(attempt->mutex);
      attempt->is_done = true;
      attempt->error = error;
      attempt->done.notify_all();
    }).detach();
    std::unique_lock<std::mutex> lock(attempt->mutex);
    while (!attempt->done.wait_for(lock, milliseconds(250), [&] { return attempt->is_done; })) {
      auto missing = group_->missing_rank();
      if (missing >= 0)
        C10_THROW_ERROR(DistBackendError, "oneCCL: " + group_->obituary(missing) + " before the group was made");
      if (Clock::now() > deadline)
        C10_THROW_ERROR(DistBackendError, "oneCCL: the ranks could not connect within the time limit");
    }
    if (!attempt->error.empty())
      C10_THROW_ERROR(DistBackendError, "oneCCL: the ranks could not connect: " + attempt->error);
  }

  ccl::communicator& comm() const { return *group_->comm; }

  WorkPtr make(OpType type, Tensors outputs, Call call, Tensors kept) {
    auto limit = call.timeout.count() > 0 ? call.timeout : group_->timeout;
    auto work = c10::make_intrusive<OneCCLWork>(group_, type, std::move(outputs), limit);
    work->kept = std::move(kept);
    work->sequence = ++sequence_;
    work->is_async = call.is_async;
    return work;
  }

  // Nothing to move on any rank: done at once.
  c10::intrusive_ptr<c10d::Work> submit(
      const WorkPtr& work, size_t size_bytes, const std::function<void(OneCCLWork&)>& issue) {
    if (size_bytes == 0) {
      work->complete(nullptr);
    } else {
      work->issue = issue;
      Engine::get().submit(work);
    }
    return work;
  }

  c10::intrusive_ptr<c10d::Work> submit_all(
      const WorkPtr& work, const std::vector<std::function<void(OneCCLWork&)>>& calls,
      const std::vector<std::function<void()>>& after) {
    work->after = [after] {
      for (const auto& step : after) step();
    };
    return submit(work, calls.size(), [calls](OneCCLWork& w) {
      for (const auto& call : calls) call(w);
    });
  }

  c10::intrusive_ptr<c10d::Work> allreduce_joined(
      OpType type, const Tensors& tensors, const c10d::AllreduceOptions& opts) {
    auto kind = reduction_of(tensors[0], opts.reduceOp);
    auto buffer = joined(tensors);
    auto work = make(type, tensors, opts, {buffer});
    work->after = [=, op = opts.reduceOp, size = size_] {
      divide(buffer, op, size);
      copy_out(buffer, tensors);
    };
    return submit(work, bytes(buffer), [=](OneCCLWork& w) {
      w.events.push_back(ccl::allreduce(buffer.data_ptr(), buffer.data_ptr(), buffer.numel() * kind.components,
                                        kind.type, kind.operation, comm()));
    });
  }

  c10::intrusive_ptr<c10d::Work> exchange_lists(
      OpType type, const Tensors& sent, const Tensors& received, Call call) {
    std::vector<size_t> sent_bytes, received_bytes;
    int64_t total = 0;
    for (const auto& tensor : sent) sent_bytes.push_back(bytes(tensor));
    for (const auto& tensor : received) {
      received_bytes.push_back(bytes(tensor));
      total += tensor.numel();
    }
    auto output = at::empty({total}, received[0].options());
    Tensors outputs;
    for (const auto& tensor : received)
      if (tensor.numel() > 0) outputs.push_back(tensor);
    return exchange(type, joined(sent), sent_bytes, output, received_bytes, outputs, call);
  }

  c10::intrusive_ptr<c10d::Work> exchange(
      OpType type, at::Tensor input, const std::vector<size_t>& sent, const at::Tensor& output,
      const std::vector<size_t>& received, const Tensors& outputs, Call call) {
    if (do_overlap(input, output)) input = input.clone();
    auto work = make(type, outputs, call, {input, output});
    work->after = [=] { copy_out(output, outputs); };
    return submit(work, 1, [=](OneCCLWork& w) {
      w.events.push_back(ccl::alltoallv(
          input.data_ptr(), sent, output.data_ptr(), received, ccl::datatype::uint8, comm()));
    });
  }

  std::vector<size_t> split_bytes(const at::Tensor& tensor, const std::vector<int64_t>& splits, const char* what) {
    TORCH_CHECK_VALUE(tensor.dim() > 0, "the ", what, " needs at least one dimension to be split along");
    int64_t rows = tensor.size(0);
    if (splits.empty()) {
      TORCH_CHECK_VALUE(rows % size_ == 0, "the ", what, " has ", rows, " rows, which ", size_,
                        " ranks cannot share evenly: give the split sizes");
      return std::vector<size_t>(size_, bytes(tensor) / size_);
    }
    TORCH_CHECK_VALUE(splits.size() == static_cast<size_t>(size_), "one ", what, " split size per rank is expected: ",
                      size_, ", not ", splits.size());
    std::vector<size_t> counts;
    int64_t sum = 0;
    for (auto split : splits) {
      TORCH_CHECK_VALUE(split >= 0, "a split size is ", split);
      sum += split;
      counts.push_back(rows == 0 ? 0 : bytes(tensor) / rows * split);
    }
    TORCH_CHECK_VALUE(sum == rows, "the ", what, " split sizes add up to ", sum, ", but it has ", rows, " rows");
    return counts;
  }

  void check_list(const Tensors& list, const at::Tensor& like, const char* what) const {
    TORCH_CHECK_VALUE(list.size() == static_cast<size_t>(size_), "one ", what, " per rank is expected: ", size_,
                      ", not ", list.size());
    for (const auto& tensor : list) {
      check_tensor(tensor);
      TORCH_CHECK_VALUE(like.defined() && tensor.scalar_type() == like.scalar_type(), "all tensors must be of one type");
    }
  }

  static void check_pair(const at::Tensor& input, const at::Tensor& output, int64_t inputs, int64_t outputs) {
    check_tensor(input);
    check_tensor(output);
    TORCH_CHECK_VALUE(input.scalar_type() == output.scalar_type(), "input and output must be of one type");
    TORCH_CHECK_VALUE(input.numel() * inputs == output.numel() * outputs, "the input has ", input.numel(),
                      " elements and the output ", output.numel(), ": one must be world size times the other");
  }

  int checked_rank(int64_t rank, const char* what) const {
    TORCH_CHECK_VALUE(rank >= 0 && rank < size_, "the ", what, " is rank ", rank, ": the group has ranks 0 to ", size_ - 1);
    return static_cast<int>(rank);
  }

  void check_other(int other, int tag) const {
    checked_rank(other, "other side");
    TORCH_CHECK_VALUE(other != rank_, "a rank cannot send to itself");
    TORCH_CHECK_VALUE(tag == 0, "oneCCL knows no tags, but the tag is ", tag, ": messages arrive in the order of sending");
  }

  std::shared_ptr<Group> group_;
  uint64_t sequence_ = 0;
};

}  // namespace accelerando

PYBIND11_MODULE(TORCH_EXTENSION_NAME, module) {
  module.def(
      "create",
      [](const c10::intrusive_ptr<c10d::Store>& store, int rank, int size, std::chrono::milliseconds timeout)
          -> c10::intrusive_ptr<c10d::Backend> {
        return c10::make_intrusive<accelerando::OneCCLBackend>(store, rank, size, timeout);
      },
      pybind11::call_guard<pybind11::gil_scoped_release>());
  module.def("stop", [] { accelerando::Engine::get().stop(); }, pybind11::call_guard<pybind11::gil_scoped_release>());
  module.def("version", [] { return std::string(ccl::get_library_version().full); });
}
