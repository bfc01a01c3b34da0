"""Evidence: the models, servers, tasks and statistics that a claim about ASD is made with."""
