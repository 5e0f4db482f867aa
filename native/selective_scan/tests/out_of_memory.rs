//! Where there is not enough memory to work in, a call fails, and the next one works.

mod support;

use std::alloc::{GlobalAlloc, Layout, System};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use selective_scan::{Error, Gradients, Method, Problem, Projection, cpu};
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

/// The results of both passes.
fn run(case: &Case) -> Result<(Vec<u8>, Gradients<Vec<u8>>), Error> {
    let mut y = vec![0; case.problem.bytes("y")];
    let mut gradients = case.gradient_buffers(0);
    let outputs = selective_scan::Outputs { y: &mut y[..], final_state: None };
    cpu::forward(&case.problem, case.inputs(), outputs)?;
    let written = gradients.as_mut().map(|_, bytes| &mut bytes[..]);
    cpu::backward(&case.problem, case.inputs(), case.output_gradients(), written)?;
    Ok((y, gradients))
}

#[test]
fn a_call_fails_and_the_next_one_works() {
    let constant = Problem { b: Projection::Constant, c: Projection::Constant, ..random::zoh(1, 1, 1, 1) };
    let problems = [
        // Channels and batch taken for one another: a vector has lanes for many channels.
        Problem { batch: 512, state: 512, d: true, dt_bias: true, ..constant.clone() },
        Problem { batch: 4, state: 1024, z: true, seq_idx: true, ..constant },
        // Channels with a b of their own each: as many blocks as channels.
        Problem {
            b: Projection::PerFrame { groups: 8192 },
            c: Projection::Constant,
            ..random::zoh(1, 1, 8192, 1)
        },
        // Two directions: sums of a whole row.
        Problem { seq: 4096, state: 4, method: Method::Poly, bidirectional: true, ..random::zoh(1, 1, 1, 1) },
    ];
    for problem in problems {
        let case = random::case(problem, 1);
        let expected = run(&case).unwrap();
        let largest = case.inputs.iter().map(|(_, bytes)| bytes.len()).max().unwrap();
        // Down to what the tensors themselves take.
        let limits = (0..).map(|halved| ((64 << 20) >> halved) - 1).take_while(|&limit| limit >= largest);
        let mut failed = 0;
        for limit in limits {
            LIMIT.store(limit, Relaxed);
            let result = run(&case);
            LIMIT.store(usize::MAX, Relaxed);
            match result {
                Ok(results) => assert!(results == expected, "{}", case.name),
                Err(error) => {
                    failed += 1;
                    let words = error.to_string();
                    assert!(words.contains("to work in failed: out of memory; use smaller"), "{words}");
                }
            }
            assert!(run(&case).unwrap() == expected, "{}", case.name);
        }
        assert!(failed > 0, "memory was enough for {}", case.name);
    }
}
