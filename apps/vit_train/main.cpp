// vit_train
int main() { return 70; }
