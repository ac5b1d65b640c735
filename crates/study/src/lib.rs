//! A study of initialisation and normalisation: does a deep network of characters learn without warm-up?
//!
//! Every [`Method`] is the same decoder with another place for its normalisations and another initialisation. All are
//! trained on the same windows of the same text with the same constant learning rate: no warm-up, no clipping, no
//! weight decay, no dropout, which are the remedies that hide a bad start. [`train_one`] is one run; it also looks at
//! the network before the first update: how the residual stream grows with depth, how the gradient shrinks on its way
//! back, and how far each LayerNorm scales it (Xiong et al. 2020; Xu et al. 2020).
//!
//! [`coordinate_run`] is one run of another study, muP's coordinate check.
//!
//! A run is a function of (method, settings, text, seed), whatever the number of threads.
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod coord;
mod method;
mod run;
mod start;
mod text;

pub use coord::{PARAMETRISATIONS, Parametrisation, coordinate_run, run_settings};
pub use method::{METHODS, Method, method};
pub use run::{train_one, training_shape};
pub use text::SymbolText;
