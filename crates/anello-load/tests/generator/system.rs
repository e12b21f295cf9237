//! Resource usage of processes, and cores of this machine.

use std::time::Duration;

use anello_load::machine::{cores_of, current_thread_cores, stolen_ns};
use anello_load::{ProcessMeter, process_cpu_ns};
use rustix::time::{ClockId, clock_gettime};

#[test]
fn usage_grows_over_time_and_missing_process_is_error() {
    let pid = std::process::id();
    let mut meter = ProcessMeter::new(pid).unwrap();
    let first = meter.read().unwrap();
    let mut sink = 0u64;
    while process_cpu_ns(pid).unwrap() <= first.cpu_ns {
        sink = std::hint::black_box(sink + 1);
    }
    let now = meter.read().unwrap();
    assert!(now.resident_bytes > 100_000 && now.since(&first).resident_bytes == now.resident_bytes);
    for pid in [0, u32::MAX] {
        let error = ProcessMeter::new(pid).unwrap_err().to_string();
        assert!(error.contains(&format!("process {pid}")), "{error}");
    }
}

#[test]
fn cpu_time_includes_exited_threads() {
    let pid = std::process::id();
    let before_ns = process_cpu_ns(pid).unwrap();
    let spent = || {
        let time = clock_gettime(ClockId::ThreadCPUTime);
        Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
    };
    let spinning = std::thread::spawn(move || {
        let mut sink = 0u64;
        while spent() < Duration::from_millis(5) {
            sink = std::hint::black_box(sink + 1);
        }
    });
    spinning.join().unwrap();
    assert!(process_cpu_ns(pid).unwrap() >= before_ns + 5_000_000);
}

#[test]
fn cores_of_thread_are_among_those_of_process() {
    let own = current_thread_cores().unwrap();
    assert!(!own.is_empty());
    let all = cores_of(std::process::id()).unwrap();
    assert!(own.iter().all(|core| all.contains(core)), "{own:?} of {all:?}");
    let first_ns = stolen_ns(&own).unwrap();
    assert!(stolen_ns(&own).unwrap() >= first_ns);
    assert!(cores_of(u32::MAX).unwrap_err().to_string().contains("process 4294967295"));
}
