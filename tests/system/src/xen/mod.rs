//! `make test-xen`: weir on a real Xen, under QEMU without KVM, against the kernel's own back end.
//!
//! `parts` fetches Xen, its tools and a kernel; `images` makes the file systems of dom0 and the guests; `bed` boots
//! them and takes commands; `scenarios` are the tests; `figures` measures.

mod bed;
mod figures;
mod grants;
mod images;
mod parts;
mod scenarios;

use std::{
    path::{Path, PathBuf},
    time::Instant,
};

pub use self::{bed::Clock, figures::ROUNDS};
use weir_bed::{
    error::{Error, Result, Tally, check},
    guest_image::{IPERF3, build_agent},
    packages,
    workspace::{Programs, Workspace},
};

use self::{
    bed::{Bed, Kit},
    parts::Parts,
};

struct Scenario {
    /// The statement that holds if the scenario passes.
    name: &'static str,
    run: fn(&mut Bed) -> Result<()>,
}

/// All scenarios but the figures, in their order. Each begins and ends without a back end and without an interface.
const SCENARIOS: &[Scenario] = &[
    Scenario { name: "vifs_come_and_go", run: scenarios::vifs_come_and_go },
    Scenario { name: "xen_boot_ping", run: scenarios::xen_boot_ping },
    Scenario { name: "weir_keeps_no_grant", run: scenarios::weir_keeps_no_grant },
    Scenario { name: "xen_mixed", run: scenarios::xen_mixed },
    Scenario { name: "xen_control_ring", run: scenarios::xen_control_ring },
    Scenario { name: "xen_agent", run: scenarios::xen_agent },
    Scenario {
        name: "xen_guest_is_saved_and_restored",
        run: scenarios::xen_guest_is_saved_and_restored,
    },
];

/// Default number of times that an interface is attached and detached, which fit into three minutes.
pub const ATTACHMENTS: u32 = 5;

/// The options of `xtask xen`.
#[derive(Clone, Debug)]
pub struct Selection {
    /// Runs only scenarios whose name contains this. The comparison's name is `figures`.
    pub only: Option<String>,
    /// A built weir to test instead of this workspace's.
    pub weir: Option<PathBuf>,
    /// Number of times that a guest's interface is attached and detached before no grant may be left mapped.
    pub attachments: u32,
    /// Number of comparisons of weir with the kernel's back end; `None` for no comparison.
    pub rounds: Option<u32>,
    /// The clock of the machine.
    pub clock: Clock,
}

impl Selection {
    fn includes(&self, name: &str) -> bool {
        self.only.as_ref().is_none_or(|only| name.contains(only.as_str()))
    }
}

/// Runs the scenarios and compares the back ends; an error only if nothing could be tried.
pub fn run(workspace: &Workspace, selection: &Selection) -> Result<Tally> {
    let parts = match fetch(workspace) {
        Ok(parts) => parts,
        Err(why) => {
            println!("skipped: Xen: {why}");
            return Ok(Tally::skipped());
        }
    };
    workspace.clear_runs()?;
    let built = Programs::build(workspace)?;
    let weir = selection.weir.clone().unwrap_or_else(|| built.weir());
    let examples = ["xen_vifs", "xen_control", "guests"].map(|name| (name, built.example(name)));
    let programs = [&examples[..], &[("weir", weir)]].concat();
    let (attachments, clock) = (selection.attachments, selection.clock);
    let agent = build_agent(workspace)?;
    let kit = Kit { workspace: workspace.clone(), parts, programs, agent, attachments, clock };
    let mut stand = Stand { kit, bed: None };
    let mut tally = Tally::default();
    for Scenario { name, run } in
        SCENARIOS.iter().filter(|scenario| selection.includes(scenario.name))
    {
        tally += stand.passes(name, run).1;
    }
    if let Some(rounds) = selection.rounds.filter(|_| selection.includes("figures")) {
        let compare = |bed: &mut Bed| figures::compare(bed, rounds);
        let (report, of_comparison) = stand.passes("figures", compare);
        tally += of_comparison;
        if let Some(report) = report {
            print!("\n{}\n", report.table());
        }
    }
    Ok(tally)
}

/// Fetches Xen and its tools, or returns the reason for their absence.
fn fetch(workspace: &Workspace) -> Result<Parts> {
    let missing = |program: &&str| !Path::new(program).exists();
    if let Some(program) = [packages::QEMU, IPERF3].into_iter().find(missing) {
        check(packages::is_root(), || format!("needs {program}, or root to install it"))?;
        packages::ensure(workspace)?;
    }
    Parts::ensure(workspace)
}

/// The machine, which the scenarios share as long as none fails.
struct Stand {
    kit: Kit,
    bed: Option<Bed>,
}

impl Stand {
    /// Runs one scenario and prints the result. A scenario that fails leaves its machine in an unknown state: the
    /// next one gets a new machine.
    fn passes<T>(
        &mut self,
        name: &str,
        run: impl FnOnce(&mut Bed) -> Result<T>,
    ) -> (Option<T>, Tally) {
        let start = Instant::now();
        let result = match self.bed.take().map_or_else(|| Bed::boot(&self.kit), Ok) {
            Ok(mut bed) => run(&mut bed)
                .map_err(|error| match bed.logs() {
                    Ok(logs) => Error::Check(format!("{error}\n{logs}")),
                    Err(_) => error,
                })
                .inspect(|_| self.bed = Some(bed)),
            Err(error) => Err(error),
        };
        println!("{} {name} ({:.1} s)", word(result.is_ok()), start.elapsed().as_secs_f32());
        match result {
            Ok(found) => (Some(found), Tally::passed()),
            Err(error) => {
                println!("{error}");
                (None, Tally::failed(format!("{name}: {error}")))
            }
        }
    }
}

fn word(passed: bool) -> &'static str {
    if passed { "PASS" } else { "FAIL" }
}
