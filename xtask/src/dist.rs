//! Packages of the release program: a Python wheel, an archive with completions and manual pages, and their checksums.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const SHELLS: [(&str, &str); 3] =
    [("bash", "bessemer.bash"), ("zsh", "_bessemer"), ("fish", "bessemer.fish")];
const PAGES: [&str; 4] = ["README.md", "CHANGELOG.md", "LICENSE-MIT", "LICENSE-APACHE"];

/// Runs a command and returns its output.
fn run(command: &mut Command) -> Result<String, String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let failed = |why: String| format!("{name}: {why}");
    let output = command.output().map_err(|e| failed(e.to_string()))?;
    if !output.status.success() {
        return Err(failed(String::from_utf8_lossy(&output.stderr).into_owned()));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn words(program: impl AsRef<std::ffi::OsStr>, root: &Path, words: &str) -> Command {
    let mut command = Command::new(program);
    command.args(words.split_whitespace()).current_dir(root);
    command
}

/// The program maturin: of PATH, or installed below the output folder.
fn maturin(out: &Path, root: &Path) -> Result<PathBuf, String> {
    if run(&mut words("maturin", root, "--version")).is_ok() {
        return Ok("maturin".into());
    }
    let tools = out.join("tools");
    if !tools.join("bin/maturin").exists() {
        run(words("python3", root, "-m venv").arg(&tools))?;
        run(words(tools.join("bin/pip"), root, "install -q --disable-pip-version-check")
            .arg("maturin>=1.9,<2"))?;
    }
    Ok(tools.join("bin/maturin"))
}

/// The folder that the archive holds.
fn folder(program: &Path, root: &Path, folder: &Path) -> Result<(), String> {
    let wrong = |e: std::io::Error| format!("{}: {e}", folder.display());
    let _ = fs::remove_dir_all(folder);
    fs::create_dir_all(folder.join("completions")).map_err(wrong)?;
    fs::copy(program, folder.join("bessemer")).map_err(wrong)?;
    for page in PAGES {
        fs::copy(root.join(page), folder.join(page)).map_err(wrong)?;
    }
    for (shell, file) in SHELLS {
        let script = run(&mut words(program, root, &format!("completions {shell}")))?;
        fs::write(folder.join("completions").join(file), script).map_err(wrong)?;
    }
    run(words(program, root, "man --out").arg(folder.join("man")))?;
    Ok(())
}

/// Makes the packages in `--out` (target/dist).
pub(crate) fn dist(root: &Path, arguments: &[String]) -> Result<(), String> {
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
    let out = match arguments {
        [] => target.join("dist"),
        [flag, out] if flag == "--out" => std::path::absolute(out).map_err(|e| format!("{out}: {e}"))?,
        _ => return Err("wanted `cargo xtask dist [--out DIRECTORY]`".into()),
    };
    fs::create_dir_all(&out).map_err(|e| format!("{}: {e}", out.display()))?;
    run(&mut words("cargo", root, "build --release --locked -p bessemer"))?;
    let program = target.join("release/bessemer");
    let version = run(&mut words(&program, root, "--version"))?;
    let version = version.trim().strip_prefix("bessemer ").ok_or("the program has no version")?.to_owned();
    let host = run(&mut words("rustc", root, "-vV"))?;
    let host =
        host.lines().find_map(|line| line.strip_prefix("host: ")).ok_or("rustc names no host")?.to_owned();

    let name = format!("bessemer-{version}-{host}");
    folder(&program, root, &out.join(&name))?;
    // The same files give the same archive.
    let same = "--sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner --mode=go-w -cf";
    let archive = format!("{name}.tar");
    run(words("tar", &out, same).args([&archive, &name]))?;
    run(words("gzip", &out, "-9 -n -f").arg(&archive))?;
    let archive = format!("{archive}.gz");

    let wheel_folder = out.join("wheel");
    let _ = fs::remove_dir_all(&wheel_folder);
    run(words(maturin(&out, root)?, root, "build --release --locked -q --out").arg(&wheel_folder))?;
    let built = fs::read_dir(&wheel_folder)
        .map_err(|e| e.to_string())?
        .flatten()
        .next()
        .ok_or("maturin made no wheel")?;
    let wheel = built.file_name().to_string_lossy().into_owned();
    fs::rename(built.path(), out.join(&wheel))
        .and_then(|()| fs::remove_dir(&wheel_folder))
        .map_err(|e| e.to_string())?;

    let sums = run(words("sha256sum", &out, "").arg(&archive).arg(&wheel))?;
    fs::write(out.join("SHA256SUMS"), &sums).map_err(|e| e.to_string())?;
    print!("{sums}");
    println!("in {}", out.display());
    Ok(())
}
