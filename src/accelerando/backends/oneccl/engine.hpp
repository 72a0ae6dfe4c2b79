// Who may enter oneCCL, who waits for it, and what happens when nothing comes back.
//
// oneCCL runs here without a worker thread of its own (CCL_WORKER_OFFLOAD=0): work moves on only while somebody asks
// for it. A rank that waits asks itself, which is the fastest; while nobody waits, one thread of ours asks now and
// then, so that a collective goes on while the program computes. One lock lets one thread at a time into the library.
#pragma once

#include <dlfcn.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iostream>
#include <list>
#include <memory>
#include <mutex>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/core/ivalue.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include <oneapi/ccl.hpp>

namespace accelerando {

// While it lives, what is written to stdout or stderr is held back; then all but oneCCL's remarks about settings is shown.
class Quiet {
 public:
  ~Quiet() {
    std::cout.flush();
    fflush(stdout);
  }

 private:
  struct Held {
    explicit Held(int descriptor)
        : descriptor(descriptor), real(dup(descriptor)), held(memfd_create("oneccl", MFD_CLOEXEC)) {
      if (real >= 0 && held >= 0) dup2(held, descriptor);
    }
    ~Held() {
      if (real >= 0 && held >= 0) {
        dup2(real, descriptor);
        std::string text, line, shown;
        char part[4096];
        lseek(held, 0, SEEK_SET);
        for (ssize_t n; (n = read(held, part, sizeof part)) > 0;) text.append(part, static_cast<size_t>(n));
        std::istringstream lines(text);
        while (std::getline(lines, line))
          if (line.find("|CCL_WARN|") == std::string::npos) shown += line + "\n";
        if (!shown.empty() && write(descriptor, shown.data(), shown.size()) < 0) shown.clear();
      }
      close(real);
      close(held);
    }
    int descriptor, real, held;
  };

  Held out_{1}, err_{2};
};

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

// How to tell a process from all others of this machine, also after its number was given away again.
struct Process {
  std::string place;  // boot and process namespace; numbers of two places say nothing about each other
  long pid = 0;
  std::string started;

  static Process read(const std::string& place, long pid) {
    Process process{place, pid, ""};
    std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
    std::string line;
    if (!std::getline(file, line)) return process;
    std::istringstream fields(line.substr(line.rfind(')') + 1));
    std::string field;
    for (int i = 0; i < 20 && fields >> field; ++i) {
      if (i == 0 && (field == "Z" || field == "X")) return process;  // dead, its parent has not noticed
      if (i == 19) process.started = field;
    }
    return process;
  }

  static Process own() {
    std::string boot;
    std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
    char name[64] = {};
    if (readlink("/proc/self/ns/pid", name, sizeof name - 1) < 0) name[0] = 0;
    return read(boot + name, getpid());
  }

  bool is_gone(const std::string& here) const {
    return place == here && !started.empty() && read(place, pid).started != started;
  }
};

// The ranks of one process group.
struct Group {
  int rank = 0, size = 1;
  milliseconds timeout{0};
  std::shared_ptr<ccl::kvs> kvs;
  std::unique_ptr<ccl::communicator> comm;
  std::vector<Process> peers;
  std::string broken;  // why nothing more can be done in this group; empty while all is well
  const void* running = nullptr;  // the collective that has begun

  // Find a rank of this machine that has ended, else -1.
  int missing_rank() const {
    for (int r = 0; r < static_cast<int>(peers.size()); ++r)
      if (r != rank && peers[r].is_gone(peers[rank].place)) return r;
    return -1;
  }

  std::string obituary(int dead) const {
    return "rank " + std::to_string(dead) + " (process " + std::to_string(peers[dead].pid) + ") has ended";
  }
};

// A rank that was killed cannot remove its shared memory itself.
inline void remove_regions(const Process& dead) {
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator("/dev/shm", ignored))
    if (entry.path().filename().string().rfind(std::to_string(dead.pid) + ":", 0) == 0)
      std::filesystem::remove(entry.path(), ignored);
}

class OneCCLWork : public c10d::Work {
 public:
  OneCCLWork(std::shared_ptr<Group> group, c10d::OpType type, std::vector<at::Tensor> outputs, milliseconds timeout)
      : Work(group->rank, type),
        group(std::move(group)),
        outputs(std::move(outputs)),
        future(c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()))),
        submitted(Clock::now()),
        deadline(submitted + timeout) {}

  bool wait(milliseconds timeout) override;
  void abort() override { TORCH_CHECK(false, "oneCCL cannot stop a collective that has begun"); }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override { return future; }
  std::vector<at::Tensor> result() override { return outputs; }
  uint64_t getSequencenumber() const override { return sequence; }

  std::string name() const { return c10d::opTypeToString(retrieveOpType()); }

  void complete(std::exception_ptr error) {
    if (!error && after) {
      try {
        at::NoGradGuard no_grad;
        after();
      } catch (...) {
        error = std::current_exception();
      }
    }
    if (error) {
      finish(error);
      future->setError(error);
    } else {
      finish();
      future->markCompleted(c10::IValue(outputs));
    }
  }

  std::shared_ptr<Group> group;
  std::vector<at::Tensor> outputs;
  std::vector<at::Tensor> kept;  // buffers that the library reads or writes
  std::function<void(OneCCLWork&)> issue;
  bool is_issued = false;
  std::vector<ccl::event> events;
  std::function<void()> after;
  c10::intrusive_ptr<c10::ivalue::Future> future;
  Clock::time_point submitted, deadline;
  uint64_t sequence = 0;
  bool is_async = true;  // the caller may do something else before it waits, if it ever does
};

using WorkPtr = c10::intrusive_ptr<OneCCLWork>;

inline std::exception_ptr failure(const std::string& what) {
  try {
    C10_THROW_ERROR(DistBackendError, what.rfind("oneCCL: ", 0) == 0 ? what : "oneCCL: " + what);
  } catch (...) {
    return std::current_exception();
  }
}

class Engine {
 public:
  static Engine& get() {
    static Engine* engine = new Engine();  // never destroyed: a stuck thread may outlive everything
    return *engine;
  }

  // Run `call` inside the library; gives up when somebody else has been in there for too long.
  template <typename Call>
  void enter(milliseconds timeout, Call call) {
    std::unique_lock<std::timed_mutex> lock(library_, timeout);
    if (!lock.owns_lock())
      C10_THROW_ERROR(DistBackendError, "oneCCL: another call has been stuck inside the library for the whole time limit");
    call();
  }

  // Begin a work. Collectives of one group run one after the other, as on a GPU stream: three all-reduces of one
  // tensor give the same as on every other backend. Messages between two ranks begin at once: each may need the other.
  void submit(const WorkPtr& work) {
    enter(work->group->timeout, [&] {
      if (!work->group->broken.empty())
        C10_THROW_ERROR(DistBackendError, "oneCCL: this process group can no longer be used: " + work->group->broken);
      std::exception_ptr error;
      begin(*work, error);
      if (error) {
        abandoned_.push_back(work);  // a part may have begun: its buffers must stay
        std::rethrow_exception(error);
      }
      pending_.push_back(work);
    });
    start();
    if (!work->is_async) return;  // the caller is about to wait, and the thread would only be in its way
    {
      std::lock_guard<std::mutex> lock(mutex_);
      is_asked_ = true;
    }
    wake_.notify_one();
  }

  // Move all work on, if nobody else is doing so. Returns whether there is any left.
  bool progress() {
    std::list<std::pair<WorkPtr, std::exception_ptr>> done;
    bool is_left = true;
    {
      std::unique_lock<std::timed_mutex> lock(library_, std::try_to_lock);
      if (!lock.owns_lock()) return true;
      for (auto it = pending_.begin(); it != pending_.end();) {
        std::exception_ptr error;
        if (!moved_on(**it, error)) {
          ++it;
          continue;
        }
        if (error) abandoned_.push_back(*it);
        done.emplace_back(*it, error);
        it = pending_.erase(it);
      }
      is_left = !pending_.empty();
    }
    for (auto& [work, error] : done) work->complete(error);  // may run callbacks, so outside the lock
    return is_left;
  }

  // Wait for everything that has begun, before the library is entered for long.
  void drain(milliseconds timeout) {
    auto deadline = Clock::now() + timeout;
    while (progress() && Clock::now() < deadline) std::this_thread::sleep_for(std::chrono::microseconds(50));
  }

  // End the thread; called before the interpreter ends.
  void stop() {
    drain(milliseconds(200));
    std::unique_lock<std::mutex> lock(mutex_);
    if (!thread_.joinable()) return;
    is_stopping_ = true;
    wake_.notify_all();
    if (ended_.wait_for(lock, std::chrono::seconds(2), [&] { return !is_running_; })) {
      lock.unlock();
      thread_.join();
    } else {
      thread_.detach();  // stuck inside the library
    }
  }

  std::atomic<int> waiting{0};

 private:
  void begin(OneCCLWork& work, std::exception_ptr& error) {
    bool is_message = c10d::isP2POp(work.retrieveOpType());
    if (work.is_issued || (!is_message && work.group->running)) return;
    work.is_issued = true;
    if (!is_message) work.group->running = &work;
    try {
      work.issue(work);
    } catch (const std::exception& problem) {
      work.group->broken = work.name() + " failed: " + problem.what();
      error = failure(work.group->broken);
    }
  }

  // Returns whether the work has come to an end, with what went wrong.
  bool moved_on(OneCCLWork& work, std::exception_ptr& error) {
    Group& group = *work.group;
    if (group.broken.empty()) begin(work, error);
    if (error) return true;
    try {
      auto& events = work.events;
      for (size_t i = 0; i < events.size();) {
        if (events[i].test()) {
          events.erase(events.begin() + static_cast<std::ptrdiff_t>(i));
        } else {
          ++i;
        }
      }
      if (work.is_issued && events.empty()) {
        if (group.running == &work) group.running = nullptr;
        return true;
      }
    } catch (const std::exception& problem) {
      auto missing = group.missing_rank();
      for (int i = 0; i < 10 && missing < 0; ++i) {  // its connection closes a moment before it is gone
        std::this_thread::sleep_for(milliseconds(20));
        missing = group.missing_rank();
      }
      if (missing < 0) {
        group.broken = problem.what();
      } else {
        group.broken = group.obituary(missing) + ", but " + work.name() + " needs it";
        remove_regions(group.peers[missing]);
      }
    }
    auto now = Clock::now();
    if (group.broken.empty() && now > work.deadline) {
      auto limit_ms = std::chrono::duration_cast<milliseconds>(work.deadline - work.submitted).count();
      std::ostringstream text;
      text << work.name() << " was not finished after " << static_cast<double>(limit_ms) / 1000.0
           << " s: did every rank of the group call it?";
      group.broken = text.str();
    }
    if (group.broken.empty() && now > work.submitted + std::chrono::seconds(1) && now > next_look_) {
      next_look_ = now + milliseconds(250);
      auto missing = group.missing_rank();
      if (missing < 0) {
        missed_ = {};
      } else if (missed_ == Clock::time_point{}) {
        missed_ = now;
      } else if (now > missed_ + std::chrono::seconds(1)) {  // what it sent before may still arrive
        group.broken = group.obituary(missing) + ", but " + work.name() + " needs it";
        remove_regions(group.peers[missing]);
      }
    }
    if (group.broken.empty()) return false;
    error = failure(group.broken);
    return true;
  }

  void start() {
    std::lock_guard<std::mutex> lock(mutex_);
    if (thread_.joinable() || is_stopping_) return;
    is_running_ = true;
    thread_ = std::thread([this] { run(); });
  }

  void run() {
    prctl(PR_SET_NAME, "oneccl");
    prctl(PR_SET_TIMERSLACK, 1000UL);
    // Else copying a large result would start a second team of OpenMP threads.
    if (auto limit = reinterpret_cast<void (*)(int)>(dlsym(RTLD_DEFAULT, "omp_set_num_threads"))) limit(1);
    while (true) {
      {
        std::unique_lock<std::mutex> lock(mutex_);
        wake_.wait_for(lock, milliseconds(20), [&] { return is_asked_ || is_stopping_; });
        is_asked_ = false;
        if (is_stopping_) break;
      }
      std::this_thread::sleep_for(std::chrono::microseconds(100));  // most callers wait at once, and do it better
      while (waiting.load() == 0 && progress()) std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
    std::lock_guard<std::mutex> lock(mutex_);
    is_running_ = false;
    ended_.notify_all();
  }

  std::timed_mutex library_;  // guards oneCCL, the lists of work and `broken` of every group
  std::list<WorkPtr> pending_;
  std::list<WorkPtr> abandoned_;  // kept for ever: the library may still write into their buffers
  Clock::time_point next_look_{}, missed_{};

  std::mutex mutex_;  // guards the thread
  std::condition_variable wake_, ended_;
  std::thread thread_;
  bool is_stopping_ = false, is_running_ = false, is_asked_ = false;
};

inline bool OneCCLWork::wait(milliseconds timeout) {
  auto& engine = Engine::get();
  auto began = Clock::now();
  ++engine.waiting;
  while (!isCompleted()) {
    engine.progress();
    auto now = Clock::now();
    if (timeout != kNoTimeout && timeout.count() > 0 && now > began + timeout) {
      --engine.waiting;
      C10_THROW_ERROR(DistBackendError, "oneCCL: " + name() + " was not finished within the time that wait() was given");
    }
    if (now < began + milliseconds(100)) {
      sched_yield();
    } else {
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
  }
  --engine.waiting;
  std::exception_ptr error = exception();
  if (error) std::rethrow_exception(error);
  return true;
}

}  // namespace accelerando
