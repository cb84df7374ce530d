"""How far lowmark goes: its real parts at growing sizes, and a model of a thousand executors over their costs."""
