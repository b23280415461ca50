//! Silent user-space guests at sockets of a running weir, read as one path a line; they stay until they are
//! interrupted:
//!
//! ```sh
//! ls /run/weir/web*.sock | cargo run --release -p weir-vif --example attach
//! ```

use std::error::Error;
use std::io::stdin;
use std::thread;

use weir_vif::{Options, Vif};
use weir_wire::Mac;

fn main() -> Result<(), Box<dyn Error>> {
    let mut guests = Vec::new();
    for (number, path) in (0_u16..).zip(stdin().lines()) {
        let [high, low] = number.to_be_bytes();
        guests.push(Vif::connect(path?, &Options::new(Mac([0x52, 0x54, 0, 2, high, low])))?);
    }
    println!("{} attached", guests.len());
    loop {
        thread::park();
    }
}
