//! A hostile Xen front end against weir as it runs, on a played Xen: what it writes into rings, into
//! xenstore and into the control ring may cost it its vif, and nobody else anything.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| weir_port_xen::testing::hostile::attack(input));
