//! `bessemer corpus verify`: whether the files of a corpus are the ones that its build wrote.

use crate::console::print;
use crate::failure::Failure;
use bessemer_units::Bytes;
use std::fmt::Write;
use std::path::Path;

pub(super) fn run(folder: &Path, as_json: bool) -> Result<(), Failure> {
    let found = bessemer_corpus::verify(folder)?;
    if as_json {
        print(&serde_json::to_string(&found)?)?;
    } else {
        let mut text = String::new();
        for file in &found.files {
            let verdict =
                file.problem.as_ref().map_or("intact".into(), |problem| format!("DAMAGED: {problem}"));
            let _ = writeln!(text, "{:<40} {:>10}  {verdict}", file.name, Bytes(file.bytes).to_string());
        }
        for name in &found.foreign {
            let _ = writeln!(text, "{name:<40} {:>10}  not written by a build", "");
        }
        print(&text)?;
    }
    let damaged: Vec<&str> =
        found.files.iter().filter(|file| file.problem.is_some()).map(|file| file.name.as_str()).collect();
    match damaged.as_slice() {
        [] => Ok(()),
        names => Err(Failure::new(format!(
            "{}: damaged: {}; put back copies of these files, or remove the corpus directory and build it again",
            folder.display(),
            names.join(", ")
        ))),
    }
}
