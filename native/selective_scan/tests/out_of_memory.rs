//! Where there is not enough memory to work in, a call fails, and the next one works.

mod support;

use std::alloc::{GlobalAlloc, Layout, System};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use selective_scan::{Error, Method, Problem, Projection, cpu};
use support::{Case, random};

/// The system's allocator, which has no more than this at a time.
struct Limited;

static LIMIT: AtomicUsize = AtomicUsize::new(usize::MAX);

// SAFETY: every call is passed on as it is, or refused as the contract allows.
unsafe impl GlobalAlloc for Limited {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if layout.size() > LIMIT.load(Relaxed) {
            return null_mut();
        }
        // SAFETY: the caller keeps the contract of `GlobalAlloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Limited = Limited;

/// The results of either pass.
fn run(case: &Case) -> [Result<Vec<Vec<u8>>, Error>; 2] {
    let mut y = vec![0; case.problem.bytes("y")];
    let mut gradients = case.gradient_buffers(0);
    let outputs = selective_scan::Outputs { y: &mut y[..], final_state: None };
    let forward = cpu::forward(&case.problem, case.inputs(), outputs);
    let written = gradients.as_mut().map(|_, bytes| &mut bytes[..]);
    let backward = cpu::backward(&case.problem, case.inputs(), case.output_gradients(), written);
    let gradients = gradients.iter().map(|(_, bytes)| bytes.clone()).collect();
    [forward.map(|()| vec![y]), backward.map(|()| gradients)]
}

#[test]
fn a_call_fails_and_the_next_one_works() {
    let constant = Problem { b: Projection::Constant, c: Projection::Constant, ..random::zoh(1, 1, 1, 1) };
    let problems = [
        // Channels and batch taken for one another: a vector has lanes for many channels.
        Problem { batch: 512, state: 512, d: true, dt_bias: true, ..constant.clone() },
        Problem { batch: 4, state: 1024, z: true, seq_idx: true, ..constant.clone() },
        // Channels with a b of their own each: as many blocks as channels.
        Problem {
            b: Projection::PerFrame { groups: 8192 },
            c: Projection::Constant,
            ..random::zoh(1, 1, 8192, 1)
        },
        // Two directions: sums of a whole row.
        Problem { seq: 4096, state: 4, method: Method::Poly, bidirectional: true, ..random::zoh(1, 1, 1, 1) },
        // Of so many states that calls are worth threads, whose own memory has y of a whole row.
        Problem { seq: 4096, state: 32, method: Method::Poly, bidirectional: true, ..constant },
    ];
    for problem in problems {
        let case = random::case(problem, 1);
        let expected = run(&case).map(Result::unwrap);
        let largest = case.inputs.iter().map(|(_, bytes)| bytes.len()).max().unwrap();
        // Down to what the tensors themselves take.
        let limits = (0..).map(|halved| ((64 << 20) >> halved) - 1).take_while(|&limit| limit >= largest);
        let mut failed = 0;
        for limit in limits {
            LIMIT.store(limit, Relaxed);
            let results = run(&case);
            LIMIT.store(usize::MAX, Relaxed);
            for (result, expected) in results.into_iter().zip(&expected) {
                match result {
                    Ok(result) => assert!(result == *expected, "{}", case.name),
                    Err(error) => {
                        failed += 1;
                        let words = error.to_string();
                        assert!(words.contains("to work in failed: out of memory; use smaller"), "{words}");
                    }
                }
            }
            assert!(run(&case).map(Result::unwrap) == expected, "{}", case.name);
        }
        assert!(failed > 0, "memory was enough for {}", case.name);
    }
}
