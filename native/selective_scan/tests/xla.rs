//! The XLA custom call where there is no XLA. What there is where one is, JAX shows (native/selective_scan_xla/tests).

use selective_scan::xla::{Registration, register};

#[test]
fn registration_does_nothing() {
    assert_eq!(register(), Ok(Registration::NoXla));
}
