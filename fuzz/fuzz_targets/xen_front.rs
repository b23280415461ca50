//! A hostile Xen front end with weir as it runs, on a simulated Xen. Its writes to rings, xenstore and the control
//! ring may stop its own vif, but must not affect others.
#![cfg_attr(fuzzing, no_main)]

weir_fuzz::target!(|input: &[u8]| weir_port_xen::testing::hostile::attack(input));
