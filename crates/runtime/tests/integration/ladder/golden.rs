//! Results of PyTorch for the same models: `golden/ladder/ladder.json`.

use std::path::PathBuf;

/// Losses of one rung, one a seed.
pub(crate) struct Golden {
    rung: String,
    losses: Vec<f64>,
}

impl Golden {
    pub(crate) fn read(rung: &str) -> Golden {
        let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../golden/ladder/ladder.json");
        let file: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
        let losses = file[rung].as_array().unwrap().iter().map(|l| l.as_f64().unwrap()).collect();
        Golden { rung: rung.to_owned(), losses }
    }

    /// Compares the mean of `ours` with the mean of PyTorch's: within `allowed`, which is made from the distances between PyTorch's own
    /// seeds and is below the distance to the neighbouring rungs.
    pub(crate) fn hold(&self, ours: &[f64], allowed: f64) {
        let mean = |l: &[f64]| l.iter().sum::<f64>() / l.len() as f64;
        let (found, wanted) = (mean(ours), mean(&self.losses));
        println!("{}: {found:.4} {ours:.4?}; PyTorch {wanted:.4} {:?}", self.rung, self.losses);
        assert!(
            (found - wanted).abs() < allowed,
            "{}: validation loss {found:.4} ({ours:.4?}), PyTorch {wanted:.4} ({:?}), allowed {allowed}",
            self.rung,
            self.losses
        );
    }
}
