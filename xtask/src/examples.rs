//! `examples/` and the workflow of a forge: each file is looked at by the tool that it is written for.

use std::path::PathBuf;

use weir_bed::{
    error::Result, packages, process::run_in, release::Programs, tally::Tally, workspace::Workspace,
};

use crate::steps::{Selection, checked};

/// The workflow's checker. With Go it is built once, in this version.
const ACTIONLINT: &str = "github.com/rhysd/actionlint/cmd/actionlint@v1.7.7";

/// What a role's template becomes with all that it can hold.
const ROLE: &str = r#"{"weir_latency_budget": "250us", "weir_uplink": "weir0",
    "weir_vifs": {"web0": {"latency_budget": "1ms", "queues": 2}, "db0": {}}}"#;

/// One check for each tool.
pub fn check(workspace: &Workspace, selection: &Selection) -> Result<Tally> {
    if let Err(error) = packages::ensure_for_examples(workspace) {
        // Tools that are there are used.
        println!("{error}");
    }
    let mut tally = Tally::default();
    let domains = ["web0.xml", "db0.xml"].map(|name| format!("examples/libvirt/{name}"));
    for domain in &domains {
        tally += tool(workspace, "virt-xml-validate", &[domain, "domain"])?;
    }
    let playbook = "examples/ansible/site.yml";
    tally += tool(workspace, "ansible-playbook", &["--syntax-check", "-i", "host,", playbook])?;
    tally += template(workspace, selection)?;
    let files = ["prometheus.yml", "weir-alerts.yml", "weir-alerts.test.yml"];
    let [config, alerts, tests] = files.map(|name| format!("examples/prometheus/{name}"));
    // The token's file is on no other host.
    let config = ["check", "config", "--syntax-only", &config];
    for args in [&config[..], &["check", "rules", &alerts], &["test", "rules", &tests]] {
        tally += tool(workspace, "promtool", args)?;
    }
    tally += workflow(workspace)?;
    Ok(tally)
}

/// Runs a tool of the system, or counts it as skipped where it is not installed.
fn tool(workspace: &Workspace, program: &str, args: &[&str]) -> Result<Tally> {
    let name = format!("{program} {}", args.join(" "));
    if !in_path(program) {
        println!("skipped: {program} is not installed: {name}");
        return Ok(Tally::skipped());
    }
    let argv = [&[program], args].concat();
    let ran = run_in(&argv, &workspace.root, &[]);
    if let Err(error) = &ran {
        println!("{error}");
    }
    Ok(checked(&name, ran.is_ok()))
}

fn in_path(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    // Joined with an absolute path, a directory is that path.
    std::env::split_paths(&path).any(|directory| directory.join(program).exists())
}

/// The role's configuration, as Ansible writes it, is one that weir takes.
fn template(workspace: &Workspace, selection: &Selection) -> Result<Tally> {
    let to = workspace.target("examples")?.join("weir.toml");
    let weir = match &selection.weir {
        Some(weir) => weir.clone(),
        None => Programs::build(workspace)?.weir(),
    };
    let argument = format!(
        "src=examples/ansible/roles/weir/templates/weir.toml.j2 dest={} validate='{} check %s'",
        to.display(),
        weir.display()
    );
    let args = ["-i", "localhost,", "-c", "local", "all", "-m", "template", "-a", &argument];
    tool(workspace, "ansible", &[&args[..], &["-e", ROLE]].concat())
}

fn workflow(workspace: &Workspace) -> Result<Tally> {
    let file = ".github/workflows/ci.yml";
    if in_path("actionlint") {
        return tool(workspace, "actionlint", &[file]);
    }
    let Some(go) = ["go", "/usr/local/go/bin/go"].into_iter().find(|go| in_path(go)) else {
        println!("skipped: neither actionlint nor go is installed: {file}");
        return Ok(Tally::skipped());
    };
    let own: PathBuf = workspace.target("tools")?.join("bin");
    let program = own.join("actionlint");
    if !program.exists()
        && let Err(error) =
            run_in(&[go, "install", ACTIONLINT], &workspace.root, &[("GOBIN", own.as_os_str())])
    {
        println!("{error}\nskipped: actionlint cannot be built: {file}");
        return Ok(Tally::skipped());
    }
    tool(workspace, &program.to_string_lossy(), &[file])
}
