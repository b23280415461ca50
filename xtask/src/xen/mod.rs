//! `make test-xen`: weir on a real Xen, under QEMU without KVM, against the kernel's own back end.
//!
//! A way through: [`parts`] fetches Xen, its tools and a kernel, [`images`] makes the file systems of dom0 and
//! the guests, [`bed`] boots them and takes commands, [`scenarios`] say what must hold, and [`figures`]
//! measure.

mod back_end;
mod bed;
mod domain;
mod figures;
mod grants;
mod images;
mod parts;
mod scenarios;

use std::{
    path::{Path, PathBuf},
    time::Instant,
};

use self::{
    bed::{Bed, Kit},
    figures::Comparison,
    parts::Parts,
};
use crate::{
    error::{Error, Result, check},
    guest_image::IPERF3,
    packages,
    process::{run as run_program, run_in},
    steps::Tally,
    weir,
    workspace::Workspace,
};

/// A scenario with its name.
struct Scenario {
    /// What holds when it passes.
    name: &'static str,
    /// Whether it is about weir as a back end.
    of_weir: bool,
    run: fn(&mut Bed) -> Result<()>,
}

/// All but the figures, in the order they run. Each begins and ends with no back end and no interface.
const SCENARIOS: &[Scenario] = &[
    Scenario { name: "vifs_come_and_go", of_weir: false, run: scenarios::vifs_come_and_go },
    Scenario { name: "xen_boot_ping", of_weir: true, run: scenarios::xen_boot_ping },
    Scenario { name: "weir_keeps_no_grant", of_weir: true, run: scenarios::weir_keeps_no_grant },
    Scenario { name: "xen_mixed", of_weir: true, run: scenarios::xen_mixed },
];

/// How often an interface comes and goes where nothing else is said: what three minutes have room for.
pub const ATTACHMENTS: u32 = 5;

/// What weir has to reach against netback.
const TCP_RATIO_MIN: f64 = 1.0;
const EVENTS_RATIO_MAX: f64 = 0.5;

/// What `xtask xen` was asked to do.
#[derive(Clone, Debug)]
pub struct Selection {
    /// Only scenarios whose name contains this; the comparison's is `figures`.
    pub only: Option<String>,
    /// A built weir to test instead of this workspace's.
    pub weir: Option<PathBuf>,
    /// How often a guest's interface comes and goes before no grant may be left mapped.
    pub attachments: u32,
}

impl Selection {
    fn includes(&self, name: &str) -> bool {
        self.only.as_ref().is_none_or(|only| name.contains(only.as_str()))
    }
}

/// Runs the scenarios and compares the back ends; an error only where nothing could be tried.
pub fn run(workspace: &Workspace, selection: &Selection) -> Result<Tally> {
    let parts = match fetch(workspace) {
        Ok(parts) => parts,
        Err(why) => {
            println!("skipped: Xen: {why}");
            return Ok(Tally { skipped: 1, ..Tally::default() });
        }
    };
    workspace.clear_runs()?;
    let weir = match &selection.weir {
        Some(weir) => weir.clone(),
        None => weir::build(workspace)?,
    };
    let serves_xen = serves_xen(&weir, workspace)?;
    if !serves_xen {
        println!("skipped: this weir takes no [xen]: all scenarios of weir as a back end");
    }
    let mut programs = build_examples(workspace)?;
    programs.push(("weir", weir));
    let attachments = selection.attachments;
    let kit = Kit { workspace: workspace.clone(), parts, programs, attachments };
    let mut stand = Stand { kit, bed: None };
    let mut tally = Tally::default();
    for Scenario { name, of_weir, run } in
        SCENARIOS.iter().filter(|scenario| selection.includes(scenario.name))
    {
        if *of_weir && !serves_xen {
            tally.skipped += 1;
        } else {
            tally += stand.passes(name, run).1;
        }
    }
    if !selection.includes("figures") {
        return Ok(tally);
    }
    let compare = |bed: &mut Bed| figures::compare(bed, serves_xen);
    let (comparison, of_comparison) = stand.passes("figures", compare);
    tally += of_comparison;
    if let Some(comparison) = comparison {
        println!("{}", comparison.to_json());
        if serves_xen {
            tally += judge(&comparison);
        }
    }
    Ok(tally)
}

/// Xen and what runs it, or why there is none.
fn fetch(workspace: &Workspace) -> Result<Parts> {
    let missing = |program: &&str| !Path::new(program).exists();
    if let Some(program) = [packages::QEMU, IPERF3].into_iter().find(missing) {
        check(packages::is_root(), || format!("needs {program}, or root to install it"))?;
        packages::ensure(workspace)?;
    }
    Parts::ensure(workspace)
}

/// Whether `weir` knows `[xen]`. If it does, but does not like the configuration, that is an error.
fn serves_xen(weir: &Path, workspace: &Workspace) -> Result<bool> {
    let config = workspace.root.join("xtask/src/xen/weir.toml");
    match run_program(&[weir.as_os_str(), "check".as_ref(), config.as_os_str()]) {
        Ok(_) => Ok(true),
        Err(Error::Command { output, .. }) if output.contains("unknown key `xen`") => Ok(false),
        Err(error) => Err(error),
    }
}

/// The programs beside weir that dom0 runs.
fn build_examples(workspace: &Workspace) -> Result<Vec<(&'static str, PathBuf)>> {
    let cargo = Workspace::cargo();
    let argv = "build --release -p weir-xen --example xen_vifs -p weir-vif --example answer";
    let argv: Vec<_> = std::iter::once(cargo.as_str()).chain(argv.split(' ')).collect();
    run_in(&argv, &workspace.root, &[])?;
    let dir = workspace.build_dir()?.join("release").join("examples");
    Ok(["xen_vifs", "answer"].map(|name| (name, dir.join(name))).to_vec())
}

/// The two figures that weir has to reach.
fn judge(comparison: &Comparison) -> Tally {
    let (tcp, events) = (comparison.tcp_ratio(), comparison.events_ratio());
    let mut tally = Tally::default();
    for (name, figure, bar, reached) in [
        ("xen_tcp_vs_netback", tcp, format!(">= {TCP_RATIO_MIN}"), tcp >= TCP_RATIO_MIN),
        (
            "xen_events_vs_netback",
            events,
            format!("<= {EVENTS_RATIO_MAX}"),
            events <= EVENTS_RATIO_MAX,
        ),
    ] {
        println!("{} {name}: {figure:.2} ({bar})", word(reached));
        tally += Tally::one(reached);
    }
    tally
}

/// The machine, which scenarios share as long as none fails.
struct Stand {
    kit: Kit,
    bed: Option<Bed>,
}

impl Stand {
    /// Runs one scenario and prints how it went. One that fails leaves its machine in a state of which
    /// nothing is known: the next one gets a new machine.
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
        let tally = Tally::one(result.is_ok());
        (result.inspect_err(|error| println!("{error}")).ok(), tally)
    }
}

fn word(passed: bool) -> &'static str {
    if passed { "PASS" } else { "FAIL" }
}
