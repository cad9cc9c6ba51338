"""The doctor's data: requests, examined machines, diagnoses and fix plans."""
