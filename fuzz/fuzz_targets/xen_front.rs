//! A hostile Xen front end with weir as it runs, on a simulated Xen. Its writes to rings, xenstore and the control
//! ring may stop its own vif, but must not affect others.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| weir_port_xen::testing::hostile::attack(input));
