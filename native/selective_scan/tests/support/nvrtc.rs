//! NVRTC, as the tests have it.

use selective_scan::cuda::nvrtc::Compiler;

/// The version that bin/kernels-test has put where it is looked for, as "13.0": then the tests do not do without.
const EXPECTED: &str = "EXPHIL_TEST_NVRTC";

/// NVRTC, or none, said aloud, where it is not there and not expected either.
pub fn compiler() -> Option<Compiler> {
    let expected = std::env::var(EXPECTED).ok();
    match Compiler::find() {
        Ok(compiler) => {
            let (major, minor) = compiler.version();
            assert!(
                expected.is_none_or(|expected| expected == format!("{major}.{minor}")),
                "{major}.{minor}"
            );
            Some(compiler)
        }
        Err(error) => {
            assert!(expected.is_none(), "{error}");
            println!("SKIPPED: kernels are compiled by NVRTC: {error}");
            None
        }
    }
}
