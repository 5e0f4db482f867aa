//! The same bits, however many threads a call has.

mod support;

use std::env;
use std::process::Command;

use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::TestRunner;
use selective_scan::{ElementType, cpu};
use sha2::{Digest, Sha256};
use support::random::{self, Limits};

/// Set in a process that tells what it has computed: the library makes its threads once, as many as rayon is told there.
const TELLS: &str = "SELECTIVE_SCAN_THREADS";

/// Outputs and gradients of random problems, as many of which are worth threads as are not.
fn digest() -> String {
    const COUNT: u32 = 60;
    let limits = Limits { batch: 3, seq: 300, groups: 2, channels_per_group: 40, state: 16 };
    let mut runner = TestRunner::new(random::config(COUNT, 0));
    let cases = random::cases(&[ElementType::F32, ElementType::F64], limits);
    let mut digest = Sha256::new();
    for _ in 0..COUNT {
        let case = cases.new_tree(&mut runner).unwrap().current();
        let (outputs, gradients) = (case.forward(cpu::forward), case.backward(cpu::backward));
        for (_, tensor) in outputs.iter().chain(gradients.iter()) {
            tensor.iter().for_each(|value| digest.update(value.to_bits().to_le_bytes()));
        }
    }
    digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn threads_change_no_bit() {
    if let Ok(threads) = env::var(TELLS) {
        println!("digest: {}", digest());
        // The library's own: beside them there are this and that which started it. One has nobody to share with.
        if cfg!(target_os = "linux") {
            let count = std::fs::read_dir("/proc/self/task").unwrap().count();
            assert_eq!(count - 2, threads.parse::<usize>().unwrap());
        }
        return;
    }
    let of = |threads: &str| {
        let mut process = Command::new(env::current_exe().unwrap());
        process.args(["threads_change_no_bit", "--exact", "--nocapture"]).env(TELLS, threads);
        process.env("RAYON_NUM_THREADS", threads);
        let output = process.output().unwrap();
        let words = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{words}{}", String::from_utf8_lossy(&output.stderr));
        words.lines().find_map(|line| line.split_once("digest: ")).expect(&words).1.to_owned()
    };
    let alone = of("1");
    for threads in ["2", "3", "5"] {
        assert_eq!(of(threads), alone, "{threads} threads");
    }
}
